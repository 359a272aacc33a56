"""What a folder of a sentence encoder says of its vectors: pooling, layers behind it, and a prompt before each text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import cached_file

from doppel.models.faults import FAILURES, ModelError, cannot
from doppel.privacy.checkpoint import weights_fingerprint

#: Modules of `sentence-transformers` that need no reader, and the settings of a pooling that say the mean.
_PLAIN = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_MODE, _MEAN = "pooling_mode", {"pooling_mode_mean_tokens": True, "pooling_mode": "mean"}


@dataclass(frozen=True)
class SentenceHead:
    """Modules behind a transformer, as `sentence-transformers` reads them, and the encoder's default prompt.

    Attributes:
        modules: Each takes and returns a dictionary of tensors; the last gives ``sentence_embedding``, [B, D].
        prompt: Stands before each text.
        prompt_length: Tokens of the prompt, of which a pooling may take none.
    """

    modules: Sequence[torch.nn.Module]
    prompt: str
    prompt_length: int

    def __call__(self, hidden_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the sentence vectors of the transformer's last states, [B, D]."""
        found: dict[str, Any] = {"token_embeddings": hidden_BTD.float(), "attention_mask": mask_BT}
        if self.prompt:
            found["prompt_length"] = self.prompt_length
        for module in self.modules:
            found = module.to(hidden_BTD.device)(found)
        vectors_BD: Tensor = found["sentence_embedding"]
        return vectors_BD

    def form(self) -> str:
        """Return the SHA-256 of modules, their weights and the prompt."""
        weights = [weights_fingerprint(module.state_dict()) for module in self.modules]
        told = [[repr(module) for module in self.modules], [_config(module) for module in self.modules], self.prompt]
        return hashlib.sha256(json.dumps([weights, *told]).encode()).hexdigest()


def _config(module: Any) -> str:
    return repr(sorted(module.get_config_dict().items())) if hasattr(module, "get_config_dict") else ""


def is_sentence_encoder(name: str | Path) -> bool:
    """Whether a folder, or a name of the hub, says how sentence vectors are made: has a ``modules.json``."""
    return _read(name, "modules.json") is not None


def needs_reader(name: str | Path) -> bool:
    """Whether an encoder's vectors are another thing than the mean over tokens of the text alone."""
    modules = _read(name, "modules.json")
    if modules is None:
        return False
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    pooling = _read(name, f"{modules[1]['path']}/config.json") if kinds in _PLAIN else None
    modes = {key: value for key, value in (pooling or {}).items() if key.startswith(_MODE) and value}
    is_mean = len(modes) == 1 and all(_MEAN.get(key) == value for key, value in modes.items())
    own = _read(name, "config_sentence_transformers.json") or {}
    return not is_mean or bool((own.get("prompts") or {}).get(own.get("default_prompt_name")))


def check_reader(name: str | Path) -> None:
    """Refuse an encoder whose vectors only `sentence-transformers` can make, where that is not installed.

    Raises:
        ModelError: It is.
    """
    if needs_reader(name) and find_spec("sentence_transformers") is None:
        raise ModelError(
            "its modules.json asks for a pooling, layers or a prompt of its own, which sentence-transformers reads: "
            "pip install 'doppel[encoders]', or name an encoder whose sentence vector is the mean over tokens",
            about=name,
        )


def load_head(name: str | Path, tokenizer: Any) -> SentenceHead | None:
    """Load what stands behind an encoder's transformer; None where that is the mean over tokens, or nothing.

    Raises:
        ModelError: It cannot be read, needs code of its own, or `sentence-transformers` is not installed.
    """
    check_reader(name)
    if not needs_reader(name):
        return None
    from sentence_transformers import SentenceTransformer

    try:
        encoder = SentenceTransformer(str(name), device="cpu").eval()
    except FAILURES as error:
        raise cannot("encoder", str(name), error) from error
    if not hasattr(encoder[0], "auto_model"):
        raise ModelError("its first module is no transformer: name another encoder", about=name)
    prompt = str((encoder.prompts or {}).get(encoder.default_prompt_name or "") or "")
    ids = tokenizer(prompt)["input_ids"] if prompt else []
    length = len(ids) - (ids[-1:] in ([tokenizer.sep_token_id], [tokenizer.eos_token_id]))
    return SentenceHead(list(encoder)[1:], prompt, length)


def _read(name: str | Path, file: str) -> Any:
    """The content of a JSON file of a model; None where it has none, or the hub cannot be asked."""
    path = cached_file(
        str(name),
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else None

"""What models that read public texts or samples have in common: each text is read once, in batches by length."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doppel.models.texts import by_length
from doppel.privacy.checkpoint import weights_fingerprint


class TextReader(ABC):
    """A model that gives a row of numbers for each text, and remembers it. The model is loaded at first use.

    Args:
        model: Folder or hub name.
        tokens_per_batch: Padded tokens in one forward pass.
        keep: See :data:`Keep`.
    """

    #: What a progress bar counts.
    counted = "features"

    def __init__(
        self,
        model: str | Path,
        tokens_per_batch: int,
        keep: Keep | None = None,
    ) -> None:
        self.name, self.tokens_per_batch, self.keep = str(model), tokens_per_batch, keep
        self._known: dict[str, Tensor] = {}
        self._loaded: tuple[Any, Any] | None = None
        self._form: str | None = None

    @abstractmethod
    def load(self) -> tuple[Any, Any]:
        """Return model and tokenizer, loaded once.

        Raises:
            ModelError: See :func:`~doppel.models.load.load_with_tokenizer`.
        """

    @abstractmethod
    def read(self, texts: Sequence[str], *, bar: bool = True) -> Tensor:
        """Read texts and remember nothing.

        Args:
            texts: At least one.
            bar: Whether a progress bar counts them.

        Returns:
            float32 tensor of shape [num_texts, numbers], on the CPU.
        """

    @abstractmethod
    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, as the model reads them."""

    @abstractmethod
    def _told(self) -> list[Any]:
        """How texts are read, beside weights, configuration and tokenizer."""

    def known(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the row of numbers of each text, see :meth:`read`; equal texts are read once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            read = self.read(new) if self.keep is None else self.keep(self, new)
            self._known |= dict(zip(new, read, strict=True))
        return [self._known[text] for text in texts]

    def whole_batches(self, texts: Sequence[str], fewest: int) -> Iterator[list[int]]:
        """Yield places of texts in parts of whole batches, at least ``fewest`` texts each but the last.

        Formal guarantees:
            Each part, read by itself, goes through the model in the batches in which all texts would: their bits, which
            depend on the other texts of a batch, stay the same.
        """
        rows, part = self._rows(texts), list[int]()
        for batch in by_length(rows, self.tokens_per_batch, self.counted):
            part += batch
            if len(part) >= fewest:
                yield part
                part = []
        if part:
            yield part

    def form(self) -> str:
        """Return what independent rows of numbers depend on beside the text: SHA-256 of weights, configuration,
        tokenizer, how they are read, and the kind of machine and the release of PyTorch that compute them; 64
        hexadecimal digits.
        """
        if self._form is None:
            model, tokenizer = self.load()
            self._rows(["a"])  # a tokenizer tells where it cuts once it has cut, so that it tells the same ever after
            backend = getattr(tokenizer, "backend_tokenizer", None)
            words = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
            told = [*self._told(), model.config.to_json_string(), words, *computed_by(model.device)]
            digest = weights_fingerprint(model.state_dict())
            self._form = hashlib.sha256(json.dumps([digest, *told]).encode()).hexdigest()
        return self._form

    def form_of_batches(self) -> str:
        """Return what rows of numbers of a batch depend on beside its texts: of :meth:`form`, batches and threads."""
        return f"{self.form()} {self.tokens_per_batch} {torch.get_num_threads()}"


def computed_by(device: torch.device) -> tuple[str, str]:
    """Return the kind of machine and the release of PyTorch, on which the last bits of what a model reads depend."""
    kind = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return kind, torch.__version__


Keep = Callable[[TextReader, Sequence[str]], Tensor]
"""Reads texts in the place of :meth:`TextReader.read`, in parts of :meth:`TextReader.whole_batches`, so that a process
that is stopped loses little."""

"""The pretrained weights below adapters: one object, apart from the weights that are trained."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from doppel.errors import UserError
from doppel.models.frozen_layers import freeze_layers
from doppel.models.load import dtype_of, load_model
from doppel.models.memory import refuse_shortage, weights_bytes
from doppel.models.quantized import Quantization, check_bitsandbytes, pack, saved_by_packing
from doppel.privacy.checkpoint import weights_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class FrozenBase:
    """The weights that a training of adapters reads and never writes: where they come from, how they are held, which
    they are.

    *Loading.* They are loaded once in the dtype of their folder, by memory map, which the processes of a node share.
    ``auto`` holds them in what the training computes in: bfloat16 where its precision is bfloat16 or it runs on a GPU
    that has it, float16 on another GPU. On a CPU in float32 they stay bfloat16 if their folder says so, and else
    float32. Layers cast for a product alone (:mod:`doppel.models.frozen_layers`), so a weight has one copy under every
    precision, and a step in float32 gives the numbers of weights that were loaded in float32.

    *Checkpoints* hold what is trained, and :meth:`record` of these weights. Whoever takes one up (resumes, samples,
    exports, starts from it) loads the folder and compares (:meth:`take`). Weights that no folder holds, for they were
    drawn at random or come from ``init_weights``, stay in the checkpoint (``is_in_folder``).

    Formal guarantees:
        The optimiser has adapters alone, so a private training releases adapters, which have their noise; these weights
        were there before the first private row was read. The digest is SHA-256 of names, shapes, types and values. It
        is made once at the start of a fit and stands in each of its checkpoints, whose own SHA-256 is in the ledger: a
        release names one whole model, and what is put together from other weights is refused. No checkpoint can carry a
        change of these weights away; that there was none is compared at the end of a private fit
        (``callbacks.untrained_state``).

    *Four bits.* With ``quantization`` their linear layers, but for the output head, are packed once adapters are on
    them (:mod:`doppel.models.quantized`); what is left has ``dtype``. The digest is then of the packed weights.

    Args:
        name: Folder or hub name.
        dtype: How they are held.
        quantization: How their linear layers are packed; None: they are not.

    Attributes:
        name: Likewise.
        quantization: Likewise.
        is_in_folder: Whether the folder holds them, so that a checkpoint need not.
        names: Entries of the module's ``state_dict`` that are theirs.
    """

    def __init__(self, name: str, dtype: Dtype = "auto", quantization: Quantization | None = None) -> None:
        self.name, self._asked, self.quantization = name, dtype, quantization
        self.is_in_folder = True
        self.names: frozenset[str] = frozenset()
        self._weights: dict[str, nn.Parameter] = {}  # by entry of the state_dict
        self._prefix = ""
        self._known: tuple[tuple[int, ...], dict[str, str]] | None = None

    def load(
        self, init: Literal["pretrained", "random"] = "pretrained", dropout: float | None = None
    ) -> PreTrainedModel:
        """Load the model, as it is held where nothing else is known of the training: see :meth:`settle`.

        Raises:
            ModelError: It cannot be loaded.
            UserError: This machine has not the memory for it.
        """
        if self.quantization is not None:
            check_bitsandbytes()
        is_open = self._asked == "auto" or self.quantization is not None  # what is packed is as the folder has it
        asked = dtype_of(self.name) if is_open else self._asked
        dtype = getattr(torch, "float32" if is_open and asked != "bfloat16" else asked)
        if not torch.cuda.is_available() and torch.get_default_device().type != "meta":
            refuse_shortage(self.name, dtype, torch.device("cpu"), self._needed(dtype))
        self.is_in_folder = init == "pretrained"
        return load_model(self.name, init=init, dropout=dropout, dtype=dtype, is_frozen=True)

    def _needed(self, dtype: torch.dtype) -> int:
        """Bytes of their files, or of what is left of them once they are packed."""
        if self.quantization is None:
            return weights_bytes(Path(self.name))
        with torch.device("meta"):
            model = load_model(self.name, init="random", dtype=dtype).requires_grad_(False)
        return sum(p.nbytes for p in model.parameters()) - saved_by_packing(model)

    def freeze(self, model: PreTrainedModel, prefix: str = "") -> None:
        """Take a model's weights that are not trained, once its adapters are on it.

        Args:
            model: With adapters, which become float32.
            prefix: Of its entries in the ``state_dict`` of the module that holds it.
        """
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        if self.quantization is not None:
            pack(model)
        freeze_layers(model)
        named = dict(model.named_parameters(remove_duplicate=False))
        trained = {name for name, parameter in named.items() if parameter.requires_grad}
        self._prefix = prefix
        self._weights = {prefix + name: p for name, p in named.items() if name not in trained}
        self.names = frozenset(prefix + name for name in model.state_dict() if name not in trained)
        if self.quantization is not None and self._asked != "auto":
            self._hold(getattr(torch, self._asked))

    @property
    def dtype(self) -> torch.dtype:
        """In which they are held."""
        return next(p.dtype for p in self._weights.values() if p.is_floating_point())

    @property
    def num_bytes(self) -> int:
        """Bytes that they take."""
        return sum(p.nbytes for p in {id(p): p for p in self._weights.values()}.values())

    def settle(self, device: torch.device, precision: str) -> None:
        """Hold them as a training computes, where that was left open.

        Args:
            device: On which it does.
            precision: ``trainer.precision``.

        Raises:
            UserError: The device has not the memory for them.
        """
        if self._asked == "auto":
            has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
            if precision.startswith("bf16") or has_bf16:
                self._hold(torch.bfloat16)
            elif device.type == "cuda":
                self._hold(torch.float16)
        if device.type == "cuda":
            refuse_shortage(self.name, self.dtype, device, self.num_bytes)

    def _hold(self, dtype: torch.dtype) -> None:
        for parameter in self._weights.values():
            if parameter.is_floating_point() and parameter.dtype is not dtype:
                parameter.data, self._known = parameter.data.to(dtype), None

    @property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each weight by its entry in the ``state_dict``; made once, and anew where one was written to."""
        versions = tuple(parameter._version for parameter in self._weights.values())
        if self._known is None or self._known[0] != versions:
            own = {id(p): p for p in self._weights.values()}  # a tied one is read once
            found = {key: weights_fingerprint({"": p}) for key, p in own.items()}
            self._known = versions, {name: found[id(p)] for name, p in self._weights.items()}
        return self._known[1]

    @property
    def digest(self) -> str:
        """SHA-256 of names, shapes, types and values, whichever layers are adapted."""
        lines = (f"{self._own_name(name)} {digest}\n" for name, digest in self.fingerprints.items())
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()

    def _own_name(self, name: str) -> str:
        return name.removeprefix(self._prefix).replace(".base_layer.", ".")

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint says of them: ``name``, ``dtype``, ``quantization``, ``digest``."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"name": self.name, "dtype": dtype, "quantization": self.quantization, "digest": self.digest}

    def take(self, checkpoint: Mapping[str, Any], path: object = "the checkpoint") -> None:
        """Be the weights that the adapters of a checkpoint were trained on, held as they were there.

        Raises:
            UserError: The folder holds others.
        """
        record: Mapping[str, Any] | None = checkpoint.get("base")
        holds_them = not self.names.isdisjoint(checkpoint.get("state_dict", {}))
        if record is None:
            log.warning(
                "%s is of before checkpoints left the frozen base out: it holds the base beside LoRA weights, and is "
                "taken as it is",
                path,
            )
            record = {"name": "one that it does not name", "dtype": "float32", "quantization": None, "digest": ""}
        if record["quantization"] != self.quantization:
            raise UserError(
                f"{path} was trained on a base with quantization {record['quantization'] or 'null'}, and the model has "
                f"{self.quantization or 'null'}: set model.quantization as it was in training"
            )
        dtype = getattr(torch, record["dtype"])
        self._asked = record["dtype"]
        if holds_them:
            self.is_in_folder = False
            self._hold(dtype)
            return
        if dtype is not self.dtype:
            self._reload(dtype)
        if self.digest != record["digest"]:
            raise UserError(
                f"{path} holds LoRA weights of another base: they were trained on {record['name']} with the digest "
                f"{record['digest'][:12]}, and {self.name} has {self.digest[:12]}; give the model's base_model the "
                "folder of their training, as it was"
            )

    def _reload(self, dtype: torch.dtype) -> None:
        """Hold what the folder holds in another dtype: a narrower one has lost digits."""
        fresh = dict(load_model(self.name, dtype=dtype, is_frozen=True).named_parameters(remove_duplicate=False))
        for name, parameter in self._weights.items():
            if parameter.is_floating_point():  # what is packed stays
                parameter.data = fresh[self._own_name(name)].data.to(parameter.device, dtype)
        self._known = None

"""Weights of an earlier training, from which another one starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from datamodules.text_format import TextFormat
from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.models.adapters import LoraArguments, add_adapters, check_same_adapters
from doppel.models.frozen_base import FrozenBase
from doppel.privacy.checkpoint import privacy_state, read_checkpoint

log = logging.getLogger(__name__)

_PREFIX = "model."


@dataclass(frozen=True)
class WarmStart:
    """A checkpoint of a :class:`~lightning_modules.causal_lm.CausalLM`, read for its weights alone.

    Formal guarantees:
        DP-SGD promises (ε, δ) for the data of *its* run, for any starting point that does not depend on them. So a
        start from weights that were trained on public turns costs nothing. Weights trained on private data without the
        privacy callback void the guarantee: a private training refuses those whose data were not declared public, and
        notes in its ledger where nothing says whether they were. Weights trained under the callback are a release of
        their own, and count beside this run: for the same people the two compose, which the ledger does if it is the
        same one, and else notes. The same holds for a ``base_model`` with a privacy card, and for what either of them
        was trained from in its turn (``origins``). The record of the file (path, SHA-256, what it was trained under)
        goes into the logger's configuration and into the checkpoint, for whoever wants to check.

    Attributes:
        weights: State dict of the Hugging Face model.
        lora: Adapters that the weights were trained with, or None. The weights are then those of the adapters, and of
            the base below them where no folder holds it.
        base: What the checkpoint says of the base below the adapters, see ``FrozenBase.record``.
        record: Path, SHA-256 of the file, ``private`` (specification and mechanism that it was trained under, and that
            digest, or None), ``is_public`` (whether its data were declared public, None where it does not say).
        origins: What those weights came from, likewise.
    """

    weights: dict[str, Tensor]
    lora: dict[str, Any] | None
    base: dict[str, Any] | None
    record: dict[str, Any]
    origins: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str, text_format: TextFormat) -> WarmStart:
        """Read a checkpoint, or ``checkpoints/last.ckpt`` of a run folder.

        Args:
            path: Where it is.
            text_format: Of the model that is to have the weights.

        Raises:
            UserError: There is none, it is no checkpoint of a language model of ours, or it was trained on other token
                ids: another tokenizer, linearisation or prefix of the task.
        """
        file = Path(path).expanduser()
        if file.is_dir():
            file = file / "checkpoints" / "last.ckpt"
        if not file.is_file():
            raise UserError(f"init_weights: no file {file}: give a run folder of `fit`, or a checkpoint in one")
        checkpoint = read_checkpoint(file)
        state = checkpoint.get("state_dict", {})
        weights = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
        if not weights or "text_format" not in checkpoint:
            raise UserError(
                f"init_weights: {file} is no checkpoint of a language model of ours: give the last.ckpt of its `fit`"
            )
        private = privacy_state(checkpoint)
        digest, under = sha256_of(file), None
        if private is not None:
            paid = {key: private[key] for key in ("scope", "mechanism_id", "num_steps")}
            under = {**private["spec"], **paid, "sha256": digest}
        record = {"path": str(path), "sha256": digest, "private": under, "is_public": checkpoint.get("data_is_public")}
        start = cls(weights, checkpoint["lora"], checkpoint.get("base"), record, checkpoint.get("origins", []))
        name = text_format.other_format(checkpoint["text_format"])
        if name is not None:
            raise start._misfit(f"the two have another {name}")
        return start

    def load_into(self, model: PreTrainedModel, base: FrozenBase | None = None) -> None:
        """Replace all weights of a model, or those that are trained.

        Args:
            model: On the CPU.
            base: The weights below its adapters, which become those of the checkpoint's training.

        Raises:
            UserError: Its weights have other names or shapes, or its base is another.
        """
        own = model.state_dict()
        if base is not None and self.lora is not None:
            state = {_PREFIX + name: value for name, value in self.weights.items()}
            base.take({"base": self.base, "state_dict": state}, f"init_weights: {self.record['path']}")
            left_out = base.names if base.is_in_folder else ()
            own = {name: value for name, value in own.items() if _PREFIX + name not in left_out}
        names = sorted(own.keys() ^ self.weights.keys())
        if names:
            raise self._misfit(f"{len(names)} weights are in one of the two models alone, such as {names[0]}")
        for name, value in own.items():
            if value.shape != self.weights[name].shape:
                shapes = f"{tuple(self.weights[name].shape)} there and {tuple(value.shape)} here"
                raise self._misfit(f"{name} has the shape {shapes}")
        model.load_state_dict(self.weights, strict=False)

    def _misfit(self, reason: str) -> UserError:
        return UserError(
            f"init_weights: {self.record['path']} does not fit this model: {reason}; train it with the same "
            "base_model, lora and linearisation"
        )


def adapt(
    model: PreTrainedModel, lora: LoraArguments | None, start: WarmStart | None, base: FrozenBase | None = None
) -> None:
    """Put adapters on a model, and the weights that training starts from: whole ones below new adapters, or those of
    adapters like the model's in their place.

    Args:
        model: As it was loaded.
        lora: Its adapters.
        start: The weights.
        base: What is below adapters.

    Raises:
        UserError: The weights do not fit, or they are of other adapters.
    """
    if start is not None and start.record["private"] is not None:
        log.warning(
            "init_weights: %s was trained privately (budget %r): its epsilon counts beside that of this run; for "
            "the same people the two compose",
            start.record["path"],
            start.record["private"]["scope"],
        )
    if start is not None and start.lora is None:
        start.load_into(model)
    if lora is not None:
        add_adapters(model, lora)
    if base is not None:
        base.is_in_folder &= start is None or start.lora is not None
        base.freeze(model, _PREFIX)
    if start is not None and start.lora is not None:
        check_same_adapters(start.lora, lora)
        start.load_into(model, base)

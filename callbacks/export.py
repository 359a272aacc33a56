"""Write a trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from doppel.errors import UserError
from doppel.models import lora_folder
from doppel.models.adapters import merged_weights
from doppel.privacy.card import not_private_card, write_card
from doppel.privacy.checkpoint import KEY
from lightning_modules.training.logical_batch_module import LogicalBatchModule


class ExportPretrained(Callback):
    """At the end of a fit, writes weights, configuration and tokenizer to a folder that any Hugging Face code loads.

    Adapters are merged into the weights that they adapt: the folder holds a plain model, and a privacy card that says
    whether the data were declared public, and what they were where the data module says so (``described``). A private
    training writes none: ``python cli.py export`` asks its ledger.

    Give that folder as ``base_model`` to start another training from these weights.

    Args:
        folder: Folder to write; null for RUN_DIR/model.
        dtype: ``float16`` halves the size on disk.
    """

    def __init__(self, folder: str | None = None, dtype: str = "float32") -> None:
        self.folder = folder
        self.dtype: torch.dtype = getattr(torch, dtype)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a private training.

        Raises:
            UserError: It is one.
        """
        private = {callback.state_key for callback in trainer.callbacks} & {KEY}  # type: ignore[attr-defined]
        if stage == "fit" and private:
            raise UserError(
                "ExportPretrained writes weights without asking a ledger: leave it out of a private training, and give "
                "`python cli.py export RUN/STAGE OUT` afterwards"
            )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the folder on rank 0."""
        if not trainer.is_global_zero:
            return
        folder = Path(self.folder or Path(trainer.default_root_dir) / "model")
        is_public = getattr(trainer.datamodule, "is_public", None)  # type: ignore[attr-defined]
        card = not_private_card(is_public, cast(LogicalBatchModule, pl_module).origins)
        seen = getattr(trainer.datamodule, "described", None)  # type: ignore[attr-defined]
        card |= {} if seen is None else {"trained_on": {**seen, "steps": trainer.global_step}}
        write_pretrained(folder, pl_module.model, pl_module.text_format, self.dtype, card)


def write_pretrained(folder: Path, model: Any, text_format: Any, dtype: torch.dtype, card: dict[str, Any]) -> None:
    """Write weights, configuration, tokenizer and privacy card, and nothing else."""
    tied = set(getattr(model, "all_tied_weights_keys", {}))  # stored once, under the name they are tied to
    weights = {k: v.detach().cpu() for k, v in merged_weights(model, dtype).items() if k not in tied}
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = dtype  # of the model in memory, in what was just written
    model.config.save_pretrained(folder)
    text_format.tokenizer.save_pretrained(folder)
    write_card(folder, card)


def write_adapters(folder: Path, model: Any, text_format: Any, dtype: torch.dtype, card: dict[str, Any]) -> None:
    """Write LoRA weights for the base that the card names, tokenizer, settings and privacy card, and nothing else."""
    lora_folder.write(folder, model, card["base"]["name"], dtype)
    model.generation_config.save_pretrained(folder)
    text_format.tokenizer.save_pretrained(folder)
    write_card(folder, card)


def write_weights(folder: Path, weights: dict[str, torch.Tensor], dtype: torch.dtype, card: dict[str, Any]) -> None:
    """Write the weights of a model that is not of Hugging Face, and the privacy card, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {k: v.detach().cpu().to(dtype if v.is_floating_point() else v.dtype) for k, v in weights.items()}
    torch.save(plain, folder / "pytorch_model.bin")
    write_card(folder, card)

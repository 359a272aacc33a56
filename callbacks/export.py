"""Write a trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from lightning_modules.backbone.lora import merged_weights


class ExportPretrained(Callback):
    """At the end of a fit, writes weights, configuration and tokenizer to a folder that any Hugging Face code loads.

    Adapters are merged into the weights that they adapt: the folder holds a plain model.

    Give that folder as ``base_model`` to start another training from these weights.

    Args:
        folder: Folder to write; null for RUN_DIR/model.
        dtype: ``float16`` halves the size on disk.
    """

    def __init__(self, folder: str | None = None, dtype: str = "float32") -> None:
        self.folder = folder
        self.dtype: torch.dtype = getattr(torch, dtype)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the folder on rank 0."""
        if not trainer.is_global_zero:
            return
        folder = Path(self.folder or Path(trainer.default_root_dir) / "model")
        write_pretrained(folder, pl_module.model, pl_module.codec, self.dtype)


def write_pretrained(folder: Path, model: Any, codec: Any, dtype: torch.dtype) -> None:
    """Write weights, configuration and tokenizer, and nothing else."""
    tied = set(getattr(model, "all_tied_weights_keys", {}))  # stored once, under the name they are tied to
    weights = {k: v.detach().cpu().to(dtype) for k, v in merged_weights(model).items() if k not in tied}
    model.save_pretrained(folder, state_dict=weights)
    codec.tokenizer.save_pretrained(folder)

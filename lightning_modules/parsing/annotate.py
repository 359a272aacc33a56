"""A trained parser from its checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from doppel.errors import UserError
from lightning_modules.semantic_parser import SemanticParser


def load_parser(path: str | Path, device: str | torch.device | None = None) -> SemanticParser:
    """Load a parser for :meth:`~lightning_modules.semantic_parser.SemanticParser.annotate`.

    Args:
        path: Checkpoint of a fit, such as ``RUN/parser/checkpoints/last.ckpt``.
        device: Where it runs; a GPU if there is one by default.

    Raises:
        UserError: There is no such file, or it is no parser's.
    """
    if not Path(path).is_file():
        raise UserError(f"no parser at {path}: fit one with configs/semantic_parser.yaml, or correct the path")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a checkpoint: give the last.ckpt of a parser's fit") from error
    parser = SemanticParser()
    parser.on_load_checkpoint(checkpoint)
    parser.load_state_dict(checkpoint["state_dict"])
    parser.max_actions = checkpoint["parser"]["max_actions"]
    return parser.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

"""A semantic parser of a few weights, none of them trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from doppel.parsing.vocabulary import ActionVocabulary
from lightning_modules.parsing.action_decoder import DecoderArguments
from lightning_modules.parsing.source_encoder import EncoderArguments
from lightning_modules.semantic_parser import SemanticParser


def write_parser(path: Path, tokenizer: str, trees: Sequence[str]) -> None:
    """Write the checkpoint of a parser of the actions of some trees."""
    torch.manual_seed(1)
    parser = SemanticParser(
        encoder=EncoderArguments(name="small", tokenizer=tokenizer, num_layers=1),
        decoder=DecoderArguments(num_layers=2, size=16, num_heads=2, feedforward_size=16),
        max_actions=12,
    )
    parser.build(ActionVocabulary.build(trees))
    state: dict[str, Any] = {"state_dict": parser.state_dict()}
    parser.on_save_checkpoint(state)
    torch.save(state, path)

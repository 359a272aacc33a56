"""What ``predict`` turns into samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PromptBatch:
    """Prompts that are sampled from together.

    Attributes:
        indices: Number of each sample in the output, over all ranks.
        prompts: Text of each prompt; None for an unconditional model.
        input_ids: Token ids of each prompt up to its separator, not padded, longest first.
    """

    indices: list[int]
    prompts: list[str | None]
    input_ids: list[list[int]]

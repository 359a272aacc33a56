"""What ``predict`` turns into samples."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PromptBatch:
    """Prompts that are sampled from together.

    Attributes:
        indices: Number of each sample in the output, over all ranks.
        prompts: Text of each prompt; None for an unconditional model.
        input_ids: Token ids of each prompt up to its separator, not padded, longest first.
        fields: What else a line of the output takes over from each prompt's line, if anything.
    """

    indices: list[int]
    prompts: list[str | None]
    input_ids: list[list[int]]
    fields: list[dict[str, str]] = field(default_factory=list)

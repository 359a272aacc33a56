"""What a decoder is asked for, and how it draws."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_modules.decoding.constraint import TreeConstraint


@dataclass(frozen=True)
class Request:
    """One text to write.

    Attributes:
        prompt: Ids that the model reads first; at least one.
        limit: Most ids to write, the end of text included; at least one.
    """

    prompt: list[int]
    limit: int


@dataclass(frozen=True)
class DrawingRule:
    """How the next token is drawn from the model's logits.

    Attributes:
        num_beams: Beams of each text; 1 samples token by token.
        top_k: Tokens kept; 0 keeps all.
        top_p: Probability mass kept; 1 keeps all.
        temperature: Divides the scores before they are cut.
        never: Ids that are never drawn.
        eos_id: Ends a text.
        constraint: Forbids tokens before the scores are cut; None forbids none.
    """

    num_beams: int
    top_k: int
    top_p: float
    temperature: float
    never: tuple[int, ...]
    eos_id: int
    constraint: TreeConstraint | None = None

"""Batches: logical ones and the micro-batches they are cut into, prompts, and those of the semantic parser.

One Lightning batch is one *logical* batch: the Poisson sample itself. The model walks over its micro-batches and
takes a single optimiser step, so steps, schedules, checkpoints and the privacy accountant all count the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

#: Label of a position that carries no loss (prompt, separator, padding).
IGNORE_INDEX = -100


@dataclass
class MicroBatch:
    """Rows that go through the model together.

    Rows are unit-major: the ``rows_per_unit`` rows of unit 0, then those of unit 1, and so on.

    Attributes:
        input_ids: Token ids, shape [num_units * rows_per_unit, T]. Padding is on the right, where causal attention
            never looks, so there is no mask.
        labels: Token ids with -100 where there is no loss; *not* shifted, same shape. An over-long example and an
            absent row of a unit are rows without any label: their loss and their gradient are zero.
        num_units: Number of privacy units, with those that fill up a fixed shape.
        rows_per_unit: Rows of each unit.
        weights: Of each row's loss, float32 [num_units * rows_per_unit]: 1, and exactly 0 for the constant rows that
            fill up a shape. None: all are 1.
        num_labels: Positions with a loss that each row has room for, whatever the rows beside it have; None: not said.
    """

    input_ids: Tensor
    labels: Tensor
    num_units: int
    rows_per_unit: int = 1
    weights: Tensor | None = None
    num_labels: int | None = None


@dataclass
class LogicalBatch:
    """All that one optimiser step sees on this rank.

    Attributes:
        micro_batches: Zero or more micro-batches; an empty Poisson sample has none.
        num_units: Units sampled on this rank.
        expected_num_units: Expected number of units over *all* ranks, by which the summed gradient is divided.
        is_public: Whether metrics of this batch may leave the process.
    """

    micro_batches: list[MicroBatch]
    num_units: int
    expected_num_units: float
    is_public: bool = False


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


@dataclass
class ParserBatch:
    """Utterances with the oracle's actions, or with trees to compare with.

    Attributes:
        sources: Pieces of each utterance.
        ids: Actions [B, T], padded on the right; the rows may be none at all.
        pointers: Positions that arcs point to [B, T], elsewhere -1.
        copies: Pieces that are copied [B, T], elsewhere -1.
        num_actions: Actions to predict, over all ranks.
    """

    sources: list[list[str]]
    ids: Tensor
    pointers: Tensor
    copies: Tensor
    num_actions: int


@dataclass
class ExampleBatch:
    """Turns to be parsed, and their trees.

    Attributes:
        utterances: What users said.
        trees: What it means.
        actions: The oracle's actions of those turns that the vocabulary can express; None if there are none.
    """

    utterances: list[str]
    trees: list[str]
    actions: ParserBatch | None

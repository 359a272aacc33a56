"""Samples of a causal language model for prompts: drawn, and drawn again where a text is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datamodules.batches.batch import PromptBatch
from doppel.decoding.sampling import SampledText, SamplingArguments, fault_of, sample_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from datamodules.text_format import TextFormat


@dataclass
class Sample:
    """One sampled text, as ``predict_step`` hands it to the writer.

    Attributes:
        index: Position among all samples of the run; unique.
        text: The target that the model wrote.
        prompt: What it was prompted with, or None.
        finished: Whether the model ended the text itself (otherwise it ran out of tokens).
        fields: Further fields of its line.
        faults: Why earlier texts for it were no samples, in order; the last is the text's own where ``is_dropped``.
        is_dropped: Whether ``text`` is no sample either, so that it has no line.
        slots: How many the prompt has, how many of these the text says, and how many of its own it has.
    """

    index: int
    text: str
    prompt: str | None
    finished: bool
    fields: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    is_dropped: bool = False
    slots: tuple[int, int, int] = (0, 0, 0)


def draw_samples(
    model: PreTrainedModel, text_format: TextFormat, batch: PromptBatch, arguments: SamplingArguments
) -> list[Sample]:
    """Sample one target for each prompt of a batch.

    What is no sample (:func:`fault_of`) is drawn again for the same prompt, up to ``arguments.redraws`` times. So the
    texts follow the model's distribution given that they are samples, for each prompt alone: prompts keep their shares,
    as they would not where more is drawn than needed and the faulty thrown away. A text that came before is a sample:
    how often the model says it is part of its distribution.
    The draws depend on the indices in the batch and on nothing else, so a resumed run draws the same.

    *Privacy.* Whether a text is a sample is a function of the text: post-processing of the trained model, which costs
    nothing. So do the counts of what was dropped.

    Returns:
        A sample for each prompt, in order; one that never became a sample ``is_dropped``.
    """
    fields = batch.fields or [{} for _ in batch.indices]
    samples = [
        Sample(index, "", prompt, False, own)
        for index, prompt, own in zip(batch.indices, batch.prompts, fields, strict=True)
    ]
    left = list(range(len(samples)))
    for number in range((arguments.redraws or 0) + 1):
        indices = [batch.indices[i] for i in left]
        stream = [*indices, -number] if number else indices
        texts = sample_texts(model, text_format, [batch.input_ids[i] for i in left], arguments, stream)
        for i, sampled in zip(left, texts, strict=True):
            sample = samples[i]
            filled = text_format.fill(
                sampled.text, sample.prompt, f"{arguments.seed} {text_format.target} {sample.index} {number}"
            )
            sampled = SampledText(filled.text, sampled.finished)
            sample.text, sample.finished = sampled
            sample.slots = (filled.num_given, filled.num_said, filled.num_own)
            fault = None if arguments.redraws is None else fault_of(sampled, text_format.target, arguments.min_words)
            sample.is_dropped = fault is not None
            if fault is not None:
                sample.faults.append(fault)
        left = [i for i in left if samples[i].is_dropped]
        if not left:
            break
    return samples

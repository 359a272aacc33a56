"""Samples for prompts: texts that are no samples are drawn again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from datamodules.batch import PromptBatch
from datamodules.turn import Field
from doppel.lispress import holds_tree, is_valid
from lightning_modules.generation import Sample, SampledText, SamplingArguments, sample_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from datamodules.codec import Codec

Fault = Literal["cut off", "empty", "too short", "a tree", "malformed"]


def fault_of(sampled: SampledText, target: Field, min_words: int = 1) -> Fault | None:
    """Why a text is no sample of its kind; None for one that is.

    Args:
        sampled: A text, and whether the model ended it.
        target: What it was to be: an utterance that has a tree in it is none, a tree has to be well-formed.
        min_words: Fewest words of an utterance.
    """
    if not sampled.finished:
        return "cut off"
    if not sampled.text.strip():
        return "empty"
    if target == "utterance" and len(sampled.text.split()) < min_words:
        return "too short"
    if target == "utterance" and holds_tree(sampled.text):
        return "a tree"
    return "malformed" if target == "parse" and not is_valid(sampled.text) else None


def draw_samples(
    model: PreTrainedModel, codec: Codec, batch: PromptBatch, arguments: SamplingArguments
) -> list[Sample]:
    """Sample one target for each prompt of a batch.

    What is no sample (:func:`fault_of`) is drawn again for the same prompt, up to ``arguments.redraws`` times. So the
    texts follow the model's distribution given that they are samples, for each prompt alone: prompts keep their shares,
    as they would not where more is drawn than needed and the faulty thrown away. A text that came before is a sample:
    how often the model says it is part of its distribution.
    The draws depend on the indices in the batch and on nothing else, so a resumed run draws the same.

    *Privacy.* Whether a text is a sample is a function of the text: post-processing of the trained model, which costs
    nothing. So do the counts of what was dropped.

    Args:
        model: A causal language model.
        codec: Of the model.
        batch: Prompts and their indices.
        arguments: How to sample.

    Returns:
        A sample for each prompt, in order; one that never became a sample ``is_dropped``.
    """
    samples = [Sample(index, "", prompt, False) for index, prompt in zip(batch.indices, batch.prompts, strict=True)]
    left = list(range(len(samples)))
    for number in range((arguments.redraws or 0) + 1):
        indices = [batch.indices[i] for i in left]
        stream = [*indices, -number] if number else indices
        texts = sample_texts(model, codec, [batch.input_ids[i] for i in left], arguments, stream)
        for i, sampled in zip(left, texts, strict=True):
            sample = samples[i]
            sample.text, sample.finished = sampled
            fault = None if arguments.redraws is None else fault_of(sampled, codec.target, arguments.min_words)
            sample.is_dropped = fault is not None
            if fault is not None:
                sample.faults.append(fault)
        left = [i for i in left if samples[i].is_dropped]
        if not left:
            break
    return samples

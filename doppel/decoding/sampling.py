"""Texts of a causal language model for prompts, and why one is no sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from transformers import GenerationConfig

from doppel.decoding.decode import DrawingRule, Request, decode, longest_decodable
from doppel.decoding.generate import generate
from doppel.decoding.tree_constraint import TextFormat, TreeConstraint, TreeProcessor, tree_constraint
from doppel.errors import UserError
from doppel.lispress import holds_tree, is_valid

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class SamplingArguments:
    """How text is sampled.

    Args:
        num_beams: 1 samples token by token; more use Hugging Face's multinomial beam search, which is slower and
            favours the most likely texts (5 for utterances in Mireshghallah et al., 2023, section 4.3).
        top_k: Candidates kept at each token; 0 keeps all.
        top_p: Probability mass of the nucleus kept at each token; 1 keeps all of it.
        temperature: Divides the logits; lower values give less diverse samples.
        max_new_tokens: Longest target in tokens; null: up to the model's last position.
        seed: Names the random streams. Samples repeat only with the same seed, batches and ``max_rows``; use a
            different one for each repetition of an experiment.
        max_rows: Rows per forward pass, ``num_beams`` for each text: more are faster on a large GPU and need more
            memory.
        redraws: How often a rejected text (cut off, empty, with a broken character, a tree where words belong, a
            malformed tree) is drawn again for its prompt, see :func:`draw_samples`; null keeps every text, as the paper
            does.
        min_words: Fewest words of an accepted request; a public bound.
        grammar: Restrict a model of parse trees to well-formed Lispress with the names of a CSV table of a public API
            (:func:`doppel.lispress.api_table.read_api_names`), of public trees as JSON lines
            (:func:`doppel.lispress.tree_names.read_tree_names`), or of a list of such files. A tree that does not end
            within max_new_tokens is rejected. Null: no restriction, as in the paper. In an experiment ``reference``,
            the default, stands for the trees of the public reference. A public grammar is post-processing; never make
            one from private data.
    """

    num_beams: int = 1
    top_k: int = 50
    top_p: float = 1.0
    temperature: float = 1.0
    max_new_tokens: int | None = None
    seed: int = 0
    max_rows: int = 128
    redraws: int | None = 20
    min_words: int = 1
    grammar: str | list[str] | None = None

    def __post_init__(self) -> None:
        wrong = {
            "num_beams must be at least 1": self.num_beams < 1,
            "top_k must be at least 0 (0 keeps every token)": self.top_k < 0,
            "top_p must be above 0 and at most 1": not 0 < self.top_p <= 1,
            "temperature must be above 0": not self.temperature > 0,
            "max_rows must be at least 1": self.max_rows < 1,
            "redraws must be at least 0, or null": self.redraws is not None and self.redraws < 0,
            "min_words must be at least 1": self.min_words < 1,
            "max_new_tokens must be at least 1, or null": self.max_new_tokens is not None and self.max_new_tokens < 1,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise UserError(f"sampling: {message}; got {self}")


class SampledText(NamedTuple):
    """A decoded target and whether the model ended it with its end-of-text token."""

    text: str
    finished: bool


Fault = Literal["cut off", "empty", "broken", "too short", "a tree", "malformed"]
#: What stands in a text for bytes that are no character: a tokenizer of bytes may end within one.
BROKEN = "\ufffd"


def fault_of(sampled: SampledText, target: str, min_words: int = 1) -> Fault | None:
    """Say why a text is no sample of its kind; None for one that is.

    An utterance that has a tree in it is none, or one of fewer words; a tree has to be well-formed.
    """
    if not sampled.finished:
        return "cut off"
    if not sampled.text.strip():
        return "empty"
    if BROKEN in sampled.text:
        return "broken"
    if target == "utterance" and len(sampled.text.split()) < min_words:
        return "too short"
    if target == "utterance" and holds_tree(sampled.text):
        return "a tree"
    return "malformed" if target == "parse" and not is_valid(sampled.text) else None


def sample_texts(
    model: PreTrainedModel,
    text_format: TextFormat,
    prompts_ids: list[list[int]],
    arguments: SamplingArguments,
    stream: Sequence[int] | None = None,
) -> list[SampledText]:
    """Sample one target for each prompt.

    One beam draws every token from the (cut and tempered) distribution of the model, by our own decoder where it can
    serve the model, and prompt and ``max_new_tokens`` fit in its sliding windows; several beams, and the rest, go
    through Hugging Face's ``generate``. Padding, the separator and
    other special tokens of the vocabulary cannot be part of a target and are never sampled. Decoding defaults that a
    model brings along from the hub (length bounds, repetition penalties) are ignored.

    A prompt without room for ``max_new_tokens`` gets what room there is, and one that fills all positions
    of the model gets an empty, unfinished text: such prompts come from unfinished samples of an earlier
    stage.

    Args:
        model: A causal language model; dropout is off while it samples.
        text_format: Gives the special ids and decodes.
        prompts_ids: Ids of each prompt, separator included; none is empty.
        arguments: How to sample.
        stream: Names a random stream of its own, together with ``arguments.seed`` and the text format's fields:
            pass the indices of the samples. Batches of other indices draw other numbers, on whichever rank
            and after any number of restarts, and the global generator is left as it was. None draws from
            the global generator.

    Returns:
        Texts in the order of the prompts.

    Raises:
        UserError: The model bounds no length and ``max_new_tokens`` is null; or the grammar does not suit the model.
    """
    num_positions: int | None = getattr(model.config, "max_position_embeddings", None)
    if num_positions is None and arguments.max_new_tokens is None:
        raise UserError(f"{type(model).__name__} has no longest length: set max_new_tokens in its sampling arguments")
    wanted = arguments.max_new_tokens
    requests: dict[int, Request] = {}
    for i, ids in enumerate(prompts_ids):
        rooms = [
            room for room in (wanted, None if num_positions is None else num_positions - len(ids)) if room is not None
        ]
        if min(rooms) > 0:
            requests[i] = Request(list(ids), min(rooms))

    texts = [SampledText("", False)] * len(prompts_ids)
    longest = longest_decodable(model) if arguments.num_beams == 1 else 0
    own = {i: request for i, request in requests.items() if request.num_tokens <= longest}
    others = {i: request for i, request in requests.items() if i not in own}
    with _random_stream(stream, arguments.seed, text_format, model.device), _plain_decoding(model):
        for write, part in ((_decode, own), (_generate, others)):
            for i, target in zip(part, write(model, text_format, list(part.values()), arguments), strict=True):
                finished = text_format.eos_id in target
                if finished:
                    target = target[: target.index(text_format.eos_id)]
                texts[i] = SampledText(text_format.decode(target), finished)
    return texts


def _decode(
    model: PreTrainedModel, text_format: TextFormat, requests: list[Request], arguments: SamplingArguments
) -> list[list[int]]:
    """Ids that the model writes after each prompt, by our own decoder."""
    rule = DrawingRule(
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        temperature=arguments.temperature,
        never=tuple(number for number in _never(text_format) if number < model.config.vocab_size),
        eos_id=text_format.eos_id,
        constraint=tree_constraint(text_format, arguments.grammar),
    )
    return decode(model, requests, rule, arguments.max_rows)


def generation_config(text_format: TextFormat, arguments: SamplingArguments) -> GenerationConfig:
    """Return the settings of Hugging Face's ``generate`` for the same distribution, but for grammar and redraws."""
    return GenerationConfig(
        do_sample=True,
        num_beams=arguments.num_beams,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        temperature=arguments.temperature,
        max_new_tokens=arguments.max_new_tokens,
        suppress_tokens=_never(text_format) or None,
        bos_token_id=text_format.bos_id,
        eos_token_id=text_format.eos_id,
        pad_token_id=text_format.pad_id,
    )


def _never(text_format: TextFormat) -> list[int]:
    """Special ids, which no target holds, but for the end of text."""
    special = {number for number, token in text_format.tokenizer.added_tokens_decoder.items() if token.special}
    return sorted({text_format.pad_id, text_format.bos_id, *special} - {text_format.eos_id})


def _generate(
    model: PreTrainedModel, text_format: TextFormat, requests: list[Request], arguments: SamplingArguments
) -> list[list[int]]:
    """The same by Hugging Face's ``generate``."""
    constraint = tree_constraint(text_format, arguments.grammar)

    def processor(width: int) -> TreeProcessor:
        return TreeProcessor(cast("TreeConstraint", constraint), width, text_format.eos_id)

    config = generation_config(text_format, arguments)
    return generate(model, requests, config, arguments.max_rows, processor if constraint else None)


@contextmanager
def _plain_decoding(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, and none of the model's own decoding defaults."""
    defaults, was_training = model.generation_config, model.training
    model.generation_config = GenerationConfig()
    model.eval()
    try:
        yield
    finally:
        model.generation_config = defaults
        model.train(was_training)


@contextmanager
def _random_stream(
    stream: Sequence[int] | None, seed: int, text_format: TextFormat, device: torch.device
) -> Iterator[None]:
    """Random numbers that depend on the stream's name alone."""
    if stream is None:
        yield
        return
    name = f"{seed} {text_format.source} {text_format.target} {list(map(int, stream))}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(digest, "big") >> 1)
        yield

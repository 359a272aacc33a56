"""What public texts say of a run: how long samples get, and which language and names models will not know."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from commands.lightning.trained_model import place_of
from commands.run_folder.run_folder import read_json
from datamodules.reading.columns import ReferenceColumns
from datamodules.reading.example import Example
from datamodules.reading.examples import iter_examples
from datamodules.reading.files import expand_path
from datamodules.text_format import MAX_LENGTH
from doppel.errors import UserError
from doppel.grammar.slot_table import SlotTable
from doppel.lispress.slots import SlotKinds, slots_of, to_slots
from doppel.models.lora_folder import base_of
from doppel.text.occurrences import Strings, fold

#: Characters of the reference that a vocabulary may lose in silence.
_LOST = 0.001

#: Longest utterance in tokens where no reference says more: requests have some 12.
USUAL_LENGTH = 48
#: Share of the reference's texts that fit, and how many times their length is allowed.
_FITS, _MARGIN = 0.99, 1.25
#: Tokens a word from which on a model does not know a language.
_SPELLED = 2.0
#: A base and an encoder of many languages.
_MANY_LANGUAGES = "Qwen/Qwen3-0.6B-Base"
_ENCODER = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
#: Texts that are read.
_TEXTS = 5000
#: Tokens that every base model takes.
_SHORTEST = 256
#: Any quoted string, whatever is around it.
_ANY = SlotKinds({"any": ["*"]})
#: Share of the strings from which on they are told of.
_MANY = 0.05


def longest_utterance(reference: str | None, columns: ReferenceColumns, base: str) -> int:
    """Return the most tokens of a sample: a quarter above the reference's 99th percentile, at least 48.

    Formal guarantees:
        The reference is public: before anything starts, a run refuses one that says what a private file does. So
        lengths taken from it cost no ε.

    Args:
        reference: The file; None: there is none.
        columns: What its columns are called.
        base: Folder or name of the model that samples, whose tokens and positions count.

    Returns:
        A multiple of 8, or the model's last position; 48 without a reference that can be read.
    """
    try:
        lengths = sorted(_num_tokens(_texts(reference, columns), base))
    except UserError:  # reading the files says it, before anything starts
        lengths = []
    if not lengths:
        return USUAL_LENGTH
    high = lengths[math.ceil(_FITS * len(lengths)) - 1]
    return min(max(USUAL_LENGTH, 8 * math.ceil((_MARGIN * high + 1) / 8)), _positions(base))


def foreign(reference: str | None, columns: ReferenceColumns, base: str, encoders: Sequence[str] = ()) -> str | None:
    """Say that the base hardly knows the language of the reference, whose words it spells, and what to take instead.

    Measured in tokens a word, for the shipped base and SmolLM2-135M: English requests 1.5 and 1.3, reviews 1.8 and 1.3,
    English of computer science 2.6 and 1.4, Spanish 2.6 and 1.8, German 3.1 and 2.2, Japanese 6.3 and 3.7, Russian 10.1
    and 3.9. A character of a script without upper and lower case counts as half a word. MiniLM, the encoder of topics:
    of 48 requests of six themes that were written once in each language, 81 % were clustered with their own theme in
    English and 39 % in German, where random clusters have 35 %.

    Formal guarantees:
        The reference is public, see :func:`longest_utterance`.

    Args:
        reference: The file; None: there is none.
        columns: What its columns are called.
        base: Folder or name of the model that samples.
        encoders: Settings that name the shipped encoder, such as ``topics.encoder``.

    Returns:
        The sentence; None where the base may know the language.
    """
    texts = _texts(reference, columns)
    words = [word for text in texts for word in text.split()]
    num_words = sum(sum(sign.isalpha() and sign.lower() == sign.upper() for sign in word) / 2 or 1 for word in words)
    num_tokens = sum(_num_tokens(texts, base))
    if num_tokens <= _SPELLED * num_words:
        return None
    told = (
        f"the reference has {num_tokens / num_words:.1f} tokens a word for {base}; words that a model knows "
        "have 1 to 2. It spells the others, and what is trained from it invents words, or breaks characters, for the "
        "same ε. If this is not English, take a base of the language, such as --set model.base_model="
        f"{_MANY_LANGUAGES} model.lora.rank=16 (docs/own-model.md)"
    )
    if not encoders:
        return told
    given = " ".join(f"{name}={_ENCODER}" for name in encoders)
    return (
        f"{told}. Nor does the shipped encoder know another language: it puts few German requests with those of their "
        f"theme (39 %, by chance 35 %; English 81 %), so that topics, votes and their shares say little. Take {given}"
    )


def lossy(reference: str | None, columns: ReferenceColumns, base: str) -> str | None:
    """Say which share of the reference's characters the base cannot write, as its vocabulary lacks or folds them.

    Formal guarantees:
        The reference is public, see :func:`longest_utterance`.

    Args:
        reference: The file; None: there is none.
        columns: What its columns are called.
        base: Folder or name of the model that samples.

    Returns:
        The sentence; None where they are less than one in a thousand, or the tokenizer has no ``tokenizer.json``.
    """
    file = place_of(base) / "tokenizer.json"
    if reference is None or not file.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    lost, num = Counter[str](), 0
    for text in _texts(reference, columns):
        own = Counter("".join(text.split()))
        num += own.total()
        lost += own - Counter(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids))
    if lost.total() <= _LOST * num:
        return None
    commonest = " ".join(character for character, _ in lost.most_common(5))
    return (
        f"{base} cannot write {lost.total() / num:.1%} of the reference's characters (white space aside), such as "
        f"{commonest}: its vocabulary lacks them, or has no capitals, and samples will lack them; take a base with a "
        "byte-level vocabulary if they matter"
    )


def unslotted(turns: Iterable[Example], table: SlotTable) -> list[str]:
    """Say which names the table does not find in public turns; nothing where they are few.

    Of strings without a kind: a number is no name, and one that the utterance does not say is one that a program needs.
    Of strings with one: those that are slots of the tree alone, for the utterance says another form of them, or none.

    Formal guarantees:
        The turns are those of the reference, which is public: nothing of the private ones is counted.
    """
    left: Counter[str] = Counter()
    in_tree_alone: list[str] = []
    num_said = num_slots = 0
    for turn in turns:
        if turn.parse is None:
            continue
        quoted = to_slots(turn.parse, "", _ANY).values.values()
        said = {fold(one.string) for one in Strings(quoted).find(turn.utterance)}
        said = {v for v in said if re.search(r"[^\W\d]", v)}
        slotted = to_slots(turn.parse, turn.utterance, table.kinds)
        kept = {fold(value) for value in to_slots(slotted.tree, "", _ANY).values.values()}
        num_said += len(said)
        left.update(said & kept)
        num_slots += len(slotted.values)
        unsaid = slotted.values.keys() - set(slots_of(slotted.utterance, table.kinds))
        in_tree_alone += [slotted.values[slot] for slot in sorted(unsaid) if fold(slotted.values[slot]) not in said]
    told = []
    if left.total() > _MANY * num_said:
        examples = ", ".join(f'"{text}"' for text, _ in left.most_common(3))
        told.append(
            f"{left.total() / num_said:.0%} of the quoted strings that the reference's requests say have no kind in "
            f"the table of placeholders, such as {examples}: models are trained on such strings as they are; if they "
            "are names, say where they stand in a table of your own, model.slots=FILE (docs/systems.md)"
        )
    if in_tree_alone:
        examples = ", ".join(f'"{text}"' for text, _ in Counter(in_tree_alone).most_common(3))
        told.append(
            f"{len(in_tree_alone):,} of {num_slots:,} names in the reference's trees are not found in their request, "
            f"such as {examples}: they are placeholders of the tree alone, and where the request says another form of "
            "one, models are trained on that"
        )
    return told


def over_long(base: str, max_length: int | None = MAX_LENGTH, task_prefix: bool = True) -> Callable[[Example], bool]:
    """Return whether an utterance alone is longer than a model takes; arguments as those of the model.

    The tokenizer is loaded when an utterance has more bytes than any model has few tokens, for no token is less.
    """

    @cache
    def text_format() -> Any:
        from datamodules.text_format import TextFormat
        from doppel.models.load import load_config, load_tokenizer

        positions = getattr(load_config(base), "max_position_embeddings", None)
        bound = min(max_length or 1 << 30, positions or 1 << 30)
        return TextFormat(load_tokenizer(base), None, "utterance", bound, "raw", task_prefix)

    def is_over_long(turn: Example) -> bool:
        if len(turn.utterance.encode()) + 8 <= min(max_length or _SHORTEST, _SHORTEST):
            return False
        return len(text_format().encode(turn).input_ids) > text_format().max_length

    return is_over_long


def _texts(reference: str | None, columns: ReferenceColumns) -> tuple[str, ...]:
    """The first texts of the reference; none without one."""
    if reference is None:
        return ()
    turns = iter_examples(expand_path(reference), "utterance", with_trees=False, columns=columns)
    return tuple(turn.utterance for turn in islice(turns, _TEXTS))


@cache  # several steps ask for those of one file
def _num_tokens(texts: Sequence[str], base: str) -> list[int]:
    """Tokens of each text, without loading a model."""
    if (file := place_of(base) / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        return [len(tokenizer.encode(f" {text}", add_special_tokens=False).ids) for text in texts]
    from doppel.models.load import load_tokenizer

    loaded = load_tokenizer(base)
    return [len(loaded(f" {text}", add_special_tokens=False)["input_ids"]) for text in texts]


def _positions(base: str) -> int:
    """Positions of a model in a folder; of any other the sampling finds the last one by itself."""
    place = place_of(base)
    file: Path = place_of(base_of(place) or base) / "config.json"
    config = read_json(file) if file.is_file() else {}
    return int(config.get("n_positions") or config.get("max_position_embeddings") or 1 << 30)

"""What the texts of the public reference are in tokens of the base: how long samples get, and how foreign they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from commands.run.settings import Experiment
from commands.runs.yaml_files import ROOT
from datamodules.columns import Columns, reference_columns
from datamodules.sources import expand_path
from datamodules.tables import place_turns
from doppel.errors import UserError

#: Longest utterance in tokens where no reference says more: requests have some 12.
USUAL_LENGTH = 48
#: Share of the reference's texts that fit, and how many times their length is allowed.
_FITS, _MARGIN = 0.99, 1.25
#: Tokens a word from which on a model does not know a language.
_SPELLED = 2.0
#: Texts that are read.
_TEXTS = 5000
#: What was found in this process, for several steps ask for it.
_FOUND: dict[tuple[str, str, str], int] = {}


def longest_utterance(experiment: Experiment, base: str) -> int:
    """Most tokens of a sample: a quarter more than 99 of 100 texts of the reference have, at least 48.

    Formal guarantees:
        The reference is public: before anything starts, a run refuses one that says what a private file does. So
        lengths taken from it cost no ε.

    Args:
        experiment: Whose ``sampling.max_new_tokens`` is null.
        base: Folder or name of the model that samples, whose tokens and positions count.

    Returns:
        A multiple of 8, or the model's last position; 48 without a reference that can be read.
    """
    if experiment.reference is None:
        return USUAL_LENGTH
    columns = reference_columns(Columns.from_config(experiment.data))
    key = (experiment.reference, repr(columns), base)  # a list of columns has no hash
    if key not in _FOUND:
        _FOUND[key] = _longest(experiment.reference, columns, base)
    return _FOUND[key]


def foreign(experiment: Experiment, base: str) -> str | None:
    """That the base hardly knows the language of the reference, whose words it spells; None where it may know it.

    Measured in tokens a word, for the shipped base and SmolLM2-135M: English requests 1.5 and 1.3, reviews 1.8 and 1.3,
    English of computer science 2.6 and 1.4, Spanish 2.6 and 1.8, German 3.1 and 2.2, Japanese 6.3 and 3.7, Russian 10.1
    and 3.9. A character of a script without upper and lower case counts as half a word.

    Formal guarantees:
        The reference is public, see :func:`longest_utterance`.
    """
    if experiment.reference is None:
        return None
    count, num_tokens, num_words = _counter(base), 0, 0.0
    for text in _texts(experiment.reference, reference_columns(Columns.from_config(experiment.data))):
        num_tokens += count(f" {text}")
        for word in text.split():
            num_words += sum(sign.isalpha() and sign.lower() == sign.upper() for sign in word) / 2 or 1
    if num_tokens <= _SPELLED * num_words:
        return None
    return (
        f"the reference has {num_tokens / num_words:.1f} tokens a word for {base}; words that a model knows "
        "have 1 to 2. It spells the others, and what is trained from it invents words, or breaks characters. The "
        "shipped base, SmolLM2-135M and MiniLM, which judges, votes and makes topics, know English alone: for another "
        "language take a model.base_model of it (with model.lora, if it is large), and such an encoder (docs/guide.md)"
    )


def _texts(reference: str, columns: Columns | None) -> list[str]:
    placed = islice(place_turns(expand_path(reference), "utterance", with_trees=False, columns=columns), _TEXTS)
    return [turn.utterance for turn in (place.turn for place in placed) if turn is not None]


def _longest(reference: str, columns: Columns | None, base: str) -> int:
    try:
        count = _counter(base)
        lengths = sorted(count(f" {text}") for text in _texts(reference, columns))
    except UserError:  # reading the files says it, before anything starts
        return USUAL_LENGTH
    if not lengths:
        return USUAL_LENGTH
    high = lengths[math.ceil(_FITS * len(lengths)) - 1]
    return min(max(USUAL_LENGTH, 8 * math.ceil((_MARGIN * high + 1) / 8)), _positions(base))


def _counter(base: str) -> Callable[[str], int]:
    """Counts the tokens of a text, without loading a model."""
    for folder in (Path(base), ROOT / base):
        file = folder / "tokenizer.json"
        if file.is_file():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    from lightning_modules.backbone.base_models import load_tokenizer

    loaded = load_tokenizer(base)
    return lambda text: len(loaded(text, add_special_tokens=False)["input_ids"])


def _positions(base: str) -> int:
    """Positions of a model in a folder; of any other the sampling finds the last one by itself."""
    for folder in (Path(base), ROOT / base):
        file = folder / "config.json"
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            return int(config.get("n_positions") or config.get("max_position_embeddings") or 1 << 30)
    return 1 << 30

"""What samples are asked for by: a topic of a run, words, or trees."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path

from commands.privacy.histogram import read_shares
from commands.run_folder.private_files import of_runs
from commands.run_folder.systems import System
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines
from doppel.lispress import is_valid
from doppel.topics import Codebook
from doppel.words import words_of

#: Texts for each one of a topic: the model's share of it differs from the released one, which noise can make tiny.
_MARGIN, _MOST = 1.3, 200


def topic_of(run: Path, system: System, given: str) -> str:
    """Return the topic of the codebook that is meant: its name, or words of it that no other one has.

    Raises:
        UserError: There is none, or several.
    """
    names = Codebook.load(run / system.scope / "one_stage" / "codebook.jsonl").bins
    found = [name for name in names if name == given] or [name for name in names if given.lower() in name.lower()]
    if len(found) == 1:
        return found[0]
    near = found or difflib.get_close_matches(given, names, n=3, cutoff=0.3) or list(names[:3])
    how = "several topics have" if found else "no topic is called"
    raise UserError(f"{how} {given!r}: give one of {'; '.join(map(repr, near))}")


def oversample_for_topic(run: Path, system: System, topic: str) -> int:
    """Return how many texts to draw for one of a topic, by its released share."""
    told = read_shares(run / system.scope / "one_stage" / "marginals.json")
    share = (told["sums"] or {}).get(topic, 0.0) / told["num_units"]
    return min(_MOST, math.ceil(_MARGIN / share)) if share > 0 else _MOST


def oversample_for_words(samples: Path, words: Sequence[str]) -> int:
    """Texts to write for each that says all of some words, by how many of the run's own samples do.

    Raises:
        UserError: One is no word.
    """
    for word in words:
        if words_of(word) != [word]:
            raise UserError(
                f"--words has {word!r}: give words in letters alone, with a comma between, such as rental,car"
            )
    texts = [str(line.get("utterance")) for _, line in read_json_lines(samples)]
    found = sum(set(words) <= set(words_of(text)) for text in texts)
    return min(_MOST, math.ceil(_MARGIN * len(texts) / found)) if found else _MOST


def check_trees(run: Path, path: Path, is_public: bool) -> int:
    """Return the number of trees in a file, which anybody may see or which a step of this run has made.

    Formal guarantees:
        A tree stands beside the utterance that is written for it. As of any prompt
        (:mod:`commands.lightning.prompts`) it is one that a step of this run has made and that is as the step made it,
        or one that is declared public, of a file that does not say what a private one says. What another run has
        released is covered by that run's ε too, which the card of this one does not state: it is taken only where it is
        declared public.

    Raises:
        UserError: They are neither, or not trees; the message says which line.
    """
    # torch, for which no --help waits
    from commands.lightning.prompts import PROMPTS, refuse_private_lines, why_not_released

    if not path.is_file():
        raise DataError(f'there is no file {path}: give JSON lines with "parse"')
    why = why_not_released(str(path), PROMPTS)
    if why is None and not path.resolve().is_relative_to(run):
        why = "another run has released them, whose ε this run's card would not count"
    if why is not None and not is_public:
        raise UserError(
            f"trees stand beside what is written for them, and nothing says that these may be seen: {why}. Give trees "
            "of this run, such as RUN/two_stage/trees.jsonl; or, where anybody may see them, add --public",
            about=path,
        )
    if why is not None:
        refuse_private_lines("--trees", str(path), None, of_runs(run))
    lines = list(read_json_lines(path))
    for number, line in lines:
        if not isinstance(line.get("parse"), str) or not is_valid(line["parse"]):
            raise DataError('no tree in Lispress under "parse"', about=f"{path}:{number}")
    if not lines:
        raise DataError(f"{path} holds no tree")
    return len(lines)

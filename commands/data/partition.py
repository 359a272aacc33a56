"""Annotated turns, split for the experiment of Mireshghallah et al. (2023, section 5.4).

Developers know a small public set D_pub in which a function does not occur; users, whose utterances D_priv nobody may
read, already ask for it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import ClosedUnitInterval, OpenUnitInterval

from datamodules.guards.overlap import overlapping, refuse_private
from datamodules.reading.columns import Columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from doppel.errors import DataError
from doppel.files import write_json, write_json_lines
from doppel.lispress import uses_function
from doppel.privacy.fingerprint import keyed_fingerprint

By = Literal["turn", "dialogue"]


def partition(
    *,
    train: str,
    out: Path,
    missing: str | None = None,
    public_share: OpenUnitInterval = 0.1,
    test: str | None = None,
    test_share: ClosedUnitInterval | None = None,
    seed: int = 1,
    by: By = "turn",
    private_diagnostics: bool = False,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Split annotated turns into a public part that lacks a function, a private and a test part.

    Writes one JSON line a turn, and partition.json, which says how the parts were made. private.jsonl holds utterances
    and units alone, so that no stage can use the trees of private turns by mistake. Two files exist for the experiment
    alone, for they hold what nobody would have: private_gold.jsonl, the same lines with their trees, for diagnosis, and
    full.jsonl, every training turn that is not tested on, with its tree, for the high-resource parser that stands in
    for human annotators.

    Args:
        train: Annotated turns: whatever training reads.
        out: Folder for the parts and partition.json.
        missing: Function that the public part must lack: a name, or a prefix with a star, such as 'EventOnDate*';
            without it the public part is a uniform share.
        public_share: Share of train that is public.
        test: Turns of the test, other ones than train's, of which most are private; without it they are cut off train.
        test_share: Share of --test (default: all of it), or of train without --test (default: 0.1).
        seed: Seed of the split.
        by: Split turns (as the paper) or whole dialogues.
        private_diagnostics: Also count the function in the private part (private/…: these values are not DP).
        columns: What the columns of both files are called; those of what is written have the usual names.

    Raises:
        DataError: An input cannot be used, or the function does not occur.
        UserError: The turns of the test are those of train.
    """
    turns = _read(train, by, columns)
    tested = None if test is None else _read(test, by, columns)
    refuse_private([("--test", test, columns)], [(train, columns)])
    parts = split(
        turns,
        tested,
        missing=missing,
        public_share=public_share,
        test_share=test_share,
        seed=seed,
        by=by,
    )
    for name in ("public", "test", "full"):
        write_json_lines(out / f"{name}.jsonl", map(_record, getattr(parts, name)))
    write_json_lines(out / "private_gold.jsonl", map(_record, parts.private))
    write_json_lines(out / "private.jsonl", ({"utterance": t.utterance, "unit": t.unit} for t in parts.private))
    private = [(str(out / "private.jsonl"), None)]
    if test is None and (found := overlapping(str(out / "test.jsonl"), None, private)) is not None:
        for name in ("public", "test", "full", "private_gold", "private"):
            (out / f"{name}.jsonl").unlink()
        raise DataError(
            f"repeats itself, so that the part cut off for the test says what the private part does ({found.told}), "
            "which no test may: give a test of other texts (--test; adaptation.test)",
            about=train,
        )
    num_in_test = sum(_uses(turn, missing) for turn in parts.test)
    summary: dict[str, Any] = {
        "train": train,
        "fingerprint": keyed_fingerprint(content_digest(expand_path(train), columns=columns)),
        "test": test,
        "test_fingerprint": None
        if test is None
        else keyed_fingerprint(content_digest(expand_path(test), columns=columns)),
        "missing_function": missing,
        "public_share": public_share,
        "test_share": test_share,
        "by": by,
        "seed": seed,
        "num_train": len(turns),
        **{f"num_{name}": len(getattr(parts, name)) for name in ("public", "dropped", "private", "test")},
        "num_test_with_function": num_in_test,
    }
    if private_diagnostics:
        summary["private/num_with_function"] = sum(_uses(turn, missing) for turn in parts.private)
    write_json(out / "partition.json", summary)
    told = {f"{name} (NOT PRIVATE)" if name.startswith("private/") else name: value for name, value in summary.items()}
    width = max(map(len, told))
    print("\n".join(f"{name:{width}}  {'–' if value is None else value}" for name, value in told.items()))
    if num_in_test == 0 and missing is not None:
        sys.stderr.write(
            f"warning: no request of the test has {missing}: the breakdown by function will be empty; "
            "give a larger test\n"
        )


@dataclass(frozen=True)
class Partition:
    """What :func:`split` returns.

    Attributes:
        public: D_pub: turns with trees, none of which has the missing function.
        private: D_priv, in the order of the input.
        test: Turns to test on, with trees.
        dropped: Turns of the public share that have the function, or no tree; they are in no part.
        full: Turns of ``train`` that have a tree and were not cut off for the test.
    """

    public: list[Example]
    private: list[Example]
    test: list[Example]
    dropped: list[Example]
    full: list[Example]


def split(
    train: Sequence[Example],
    test: Sequence[Example] | None,
    *,
    missing: str | None,
    public_share: float = 0.1,
    test_share: float | None = None,
    seed: int = 1,
    by: By = "turn",
) -> Partition:
    """Split turns uniformly at random; nothing but ``seed`` and the number of turns decides who is where.

    With one seed, a larger public share holds a smaller one, and the private parts shrink accordingly.

    Args:
        train: Annotated turns.
        test: Turns to test on; None cuts them off ``train``.
        missing: As for :func:`partition`, and likewise the other arguments.

    Returns:
        Three disjoint parts, each in the order of the input.

    Raises:
        DataError: A share is impossible, a part would be empty, or no tree of ``train`` has the function.
    """
    test_share = (0.1 if test is None else 1.0) if test_share is None else test_share
    cut_off = test_share if test is None else 0.0
    if not (0 < public_share < 1 and 0 < test_share <= 1 and public_share + cut_off < 1):
        raise DataError(
            f"--public-share {public_share:g} and --test-share {test_share:g} leave no three parts: give shares above "
            "0 that add up to less than 1"
        )
    if missing is not None:
        _check(missing, train)
    order = _order(train, seed, by)
    num_public = max(1, round(public_share * len(order)))
    end = len(order) - round(cut_off * len(order))
    share, private, rest = (_take(train, part) for part in (order[:num_public], order[num_public:end], order[end:]))
    if test is not None:
        test_order = _order(test, seed, by)
        rest = _take(test, test_order[: max(1, round(test_share * len(test_order)))])
    dropped = [turn for turn in share if turn.parse is None or _uses(turn, missing)]
    public = [turn for turn in share if turn.parse is not None and not _uses(turn, missing)]
    tested = [turn for turn in rest if turn.parse is not None]
    for name, turns in (("public", public), ("private", private), ("test", tested)):
        if not turns:
            raise DataError(f"the {name} part would be empty: give other shares, or more requests with trees")
    full = [turn for turn in _take(train, order[:end]) if turn.parse is not None]
    return Partition(public, private, tested, dropped, full)


def _take(turns: Sequence[Example], groups: Sequence[list[int]]) -> list[Example]:
    return [turns[index] for index in sorted(index for group in groups for index in group)]


def _uses(turn: Example, missing: str | None) -> bool:
    return missing is not None and uses_function(turn.parse, missing)


def _check(pattern: str, turns: Sequence[Example]) -> None:
    """Refuse a function that no training tree has; names of others, which may be of private trees alone, are not told.

    Raises:
        DataError: It is no pattern, or nothing matches.
    """
    try:
        uses_function(None, pattern)
    except ValueError as error:
        raise DataError(f"--missing: {error}") from None
    if any(uses_function(turn.parse, pattern) for turn in turns):
        return
    if all(turn.parse is None for turn in turns):
        raise DataError('the training requests have no trees: give dialogues, or lines with "parse"')
    raise DataError(
        f"--missing: no tree of the training requests calls {pattern!r}: give a function's name, or its beginning and "
        "a star"
    )


def _order(turns: Sequence[Example], seed: int, by: By) -> list[list[int]]:
    """Indices of turns, those that stay together in one list, in random order."""
    groups: dict[object, list[int]] = {}
    for index, turn in enumerate(turns):
        groups.setdefault(index if by == "turn" else turn.unit, []).append(index)
    order = list(groups.values())
    random.Random(f"partition {seed}").shuffle(order)
    return order


def _read(path: str, by: By, columns: Columns) -> list[Example]:
    """Turns whose ``unit`` is the dialogue or user wherever the file names one."""
    path = expand_path(path)
    if by == "dialogue":
        return read_examples(path, "dialogue", columns=columns, unit_names="exact")
    turns = read_examples(
        path, "utterance", columns=columns
    )  # their units are NAME/NUMBER, or NUMBER where there is no name
    return [replace(turn, unit=turn.unit.rpartition("/")[0] or turn.unit) for turn in turns]


def _record(turn: Example) -> dict[str, str | None]:
    return {"utterance": turn.utterance, "parse": turn.parse, "unit": turn.unit}

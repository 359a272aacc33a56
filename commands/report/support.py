"""Whether the words that say what is supported fit what occurs, so that a misspelt one is not taken for an answer."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from commands.report.names import Names
from commands.report.supported import Supported, public_file, read_supported
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import PUBLIC_TREES
from doppel.errors import UserError
from doppel.lispress.api_table import read_api_names
from doppel.text.topics import NO_NAME


@dataclass(frozen=True)
class Support:
    """What the assistant supports, as far as it can be told.

    Attributes:
        supported: None where nobody says it, or nothing that is said fits.
        unknown: Words that fit no name that occurs or is known publicly, with the nearest such name or "".
        unseen: Names that are lacking, are known, and occur in no sample.
        notes: For whoever reads the console.
    """

    supported: Supported | None
    unknown: dict[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_support(record: RunFolder, given: Sequence[str] | None, names: Names, occurring: Collection[str]) -> Support:
    """Find what the assistant supports: as given, as the experiment says, or by the API table of the sampled trees.

    Formal guarantees:
        Words are compared with names in released samples, in released shares and in public files.

    Args:
        record: The run.
        given: What the command line says, in place of the experiment.
        names: Public words for names.
        occurring: Names in the samples of which the page tells, and in what was released of them; none where they
            have neither trees nor labels.

    Raises:
        UserError: A file cannot be read; or nothing that the command line says occurs.
    """
    tables = _tables(record)
    wanted = given if given is not None else record.experiment.get("supported")
    where = {} if given is None else {"where": "what the command “report” was given"}
    supported = read_supported(wanted, tables, **where)
    if supported is None or not occurring:
        is_idle = given is not None and not occurring
        return Support(
            supported, notes=("--supported tells nothing here: the samples have neither trees nor labels",) * is_idle
        )
    if not any(map(supported.is_named, occurring)) and supported.is_table:
        return Support(None)  # of the functions of another system's trees
    public = {*names.words, *(name for name in names.plumbing if not name.endswith("*"))}
    public |= {function for table in tables for function in read_api_names([public_file(table)]).functions}
    known = public | set(occurring)
    words = supported.unmatched(known)
    unknown = {word: _nearest(word.removeprefix("!"), occurring) for word in words}
    told = "; ".join(f"{word} (did you mean {near}?)" if near else word for word, near in list(unknown.items())[:10])
    told += f"; and {len(unknown) - 10} more" if len(unknown) > 10 else ""
    if unknown and len(unknown) == len(supported.patterns) + len(supported.without):
        if given is not None:
            named = [name for name in occurring if name[:1].isalpha() and not names.is_plumbing(name)]
            usual = sorted(named, key=lambda name: (name.startswith(NO_NAME), name))
            raise UserError(
                f"nothing that --supported names occurs in {record.folder} ({told}): give names as its page has them"
                f"{', such as ' + repr(usual[0]) if usual else ''}, or a file of such names"
            )
        note = f"nothing that supported names in the experiment occurs ({told}), so the page does not use it: give "
        return Support(
            None,
            unknown,
            notes=(f"{note}python cli.py report {public_names(str(record.folder.resolve()))} --supported NAMES",),
        )
    unseen = tuple(
        w.removeprefix("!") for w in supported.unmatched(occurring) if w.startswith("!") and w not in unknown
    )
    notes = (f"supported names what does not occur, and may be misspelt: {told}",) if unknown else ()
    return Support(supported, unknown, unseen, notes)


def _tables(record: RunFolder) -> list[str]:
    """API tables under which trees were sampled, if they are on this machine."""
    files = (file for entry in record.manifest.find(verb="predict") for file in entry.inputs if file.endswith(".csv"))
    return [file for file in dict.fromkeys(files) if os.path.isfile(public_file(file))]


def sampled_of(record: RunFolder, samples: str) -> str | None:
    """Return where the functions stand of which the trees of some samples could be made; None where of any.

    Args:
        record: The run.
        samples: File of the samples, in the run folder.
    """
    manifest = record.manifest
    read = {file: None for entry in manifest.upstream(samples) if entry.verb == "predict" for file in entry.inputs}
    files = [os.path.basename(file) for file in read if file.endswith(".csv")]
    public_trees = record.folder / PUBLIC_TREES
    if PUBLIC_TREES in read and public_trees.is_file() and public_trees.stat().st_size:
        files.append("the trees of the reference")
    return " and ".join(files) or None


def _nearest(word: str, names: Collection[str]) -> str:
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), sorted(lower), n=1, cutoff=0.75)
    return lower[near[0]] if near else ""

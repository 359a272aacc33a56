"""Public trees, of whose functions the trees of a model are made."""

from __future__ import annotations

from pathlib import Path

from commands.run_folder.private_files import of_runs
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import Columns, reference_columns
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.files import write_json_lines
from doppel.lispress import anonymise, is_valid, read, write
from doppel.lispress.tree_names import names_in_trees, unseen_share

#: Of the next public trees: the share that may call an unseen function.
MOST_UNSEEN = 0.1


def public_trees(*, reference: str, out: Path, columns: Columns = Columns()) -> None:  # noqa: B008 (frozen)
    """Write the trees of a public file, of whose functions a model's trees are made.

    OUT has each tree once, without what its quotes hold. Sampled trees have its functions, types and constants alone.
    Where OUT would lack too many functions, it is written empty, and trees are sampled freely: as measured on the
    public trees themselves, more than one in ten of the next ones would call a function that none of these calls.

    Formal guarantees:
        OUT is a function of the reference, which anybody may see, so what is sampled under its names is
        post-processing. A reference that says what a private file of the run does is refused here too.

    Args:
        reference: Human turns that anybody may see: a file, or 'embedded:…'.
        out: JSON lines with "parse"; empty where there are too few trees, or none.
        columns: What the columns of the private file are called; those of the reference are too, or have usual names.

    Raises:
        DataError: The reference cannot be read.
        UserError: It is a private file of the run.
    """
    used = reference_columns(columns)
    refuse_private([("--reference", reference, used)], of_runs(out))
    turns = read_examples(expand_path(reference), "utterance", columns=used)
    trees = [turn.parse for turn in turns if turn.parse is not None and is_valid(turn.parse)]
    unseen = unseen_share(trees)
    is_enough = bool(trees) and unseen <= MOST_UNSEEN
    kept = dict.fromkeys(write(anonymise(read(tree))) for tree in trees) if is_enough else {}
    write_json_lines(out, ({"parse": tree} for tree in kept))
    if not trees:
        print(f"{reference} has no trees, so sampled trees may call any function; malformed ones are drawn again")
    elif not is_enough:
        print(
            f"{reference} has {len(trees):,} trees, and {unseen:.0%} of the next ones would call a function that these "
            "lack: too few to go by. Sampled trees may call any function; malformed ones are drawn again"
        )
    else:
        print(
            f"{out}: sampled trees call only the {len(names_in_trees(kept).functions)} functions of the reference's "
            f"trees. A function that these lack is never sampled, however often people ask for it; of the next public "
            f"trees {unseen:.1%} would call one. To add functions: "
            "stages.parse_tree.sampling.grammar='[reference, api.csv]'; to write freely: …grammar=null"
        )

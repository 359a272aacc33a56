"""``python cli.py page``: a run, or several beside one another, as one HTML file."""

from __future__ import annotations

from pathlib import Path

from commands.page.report import build_report
from commands.page.write import write_page
from commands.runs.run_record import RunRecord
from doppel.console.collection import no_collection
from doppel.errors import UserError


@no_collection()
def page(
    runs: list[Path],
    *,
    out: Path | None = None,
    supported: list[str] | None = None,
    names: str | None = None,
    private: bool = False,
) -> None:
    """Write a run, or several beside one another, as one HTML file that anybody can open.

    Of one run: what people ask for and the assistant cannot do, how often, in synthetic examples; the privacy card;
    how near the samples come to human turns; how to repeat it. Of several: what privacy costs, with seeds. The file
    asks no network for anything, and all on it is released with noise, post-processed or public.

    Args:
        runs: A run folder; several, or a folder of runs, for a comparison.
        out: The file to write; by default report.html in the run folder, comparison.html in the first folder.
        supported: Functions or labels that the assistant supports, in place of what the experiment says: names, starts
            of names with a star, '!NAME' for one that it lacks; or a file of them, or a .csv table of its API.
        names: A public YAML file of what people call functions, labels and topics, in place of what the experiment
            says, such as configs/names/smcalflow.yaml.
        private: Also show what the run compared with private text, which is NOT PRIVATE.

    Raises:
        UserError: There is no run, or it has no samples; a file is not there, or nothing that is said to be supported
            occurs in the samples.
    """
    records = [record for folder in runs for record in _records(folder)]
    if len(records) != 1:
        from commands.page.comparison import write_comparison  # pandas, which no --help waits for

        path = write_comparison(records, out or runs[0] / "comparison.html")
    else:
        (record,) = records
        try:
            report = build_report(record)
        except UserError:  # the page says that nothing was measured, and of privacy what the card says
            report = None
        path, notes = write_page(record, report, supported=supported, names=names, with_private=private, out=out)
        for note in notes:
            print(f"note: {note}")
    print(f"{path}: open it in a browser; it asks no network for anything")


def _records(folder: Path) -> list[RunRecord]:
    """The run that a folder is, or those that it holds."""
    found = list(RunRecord.find(folder))
    if not found:
        raise UserError(f"{folder} holds no run: give a run folder, or several")
    return [record for record in found if record.folder == folder] or found

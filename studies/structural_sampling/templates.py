"""The abstract templates of a file of programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from studies.structural_sampling.programs import template
from studies.structural_sampling.rows import queries


def templates(file: Path, *, skip_bad_rows: bool = False) -> None:
    """Print the abstract template of each program of a file, after the row's id and a tab.

    A template is a program without what varies freely. ThingTalk: entities, tables, properties and operators become
    tokens, as in column 6 of the Schema2QA files (Oren et al., 2021). Lispress: strings, numbers, dates and names
    become VALUE. Templates of a private file are as private as the file.

    Args:
        file: Rows with an utterance and a program: JSON lines, a table with named columns, or a Schema2QA .tsv.
        skip_bad_rows: Name broken rows and pass over them, instead of stopping at the first.

    Raises:
        DataError: The file cannot be read, or a row of it is broken.
    """
    try:
        for row, query in queries(str(file), skip_bad_rows):
            sys.stdout.write(f"{row.name}\t{template(query)}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

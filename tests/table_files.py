"""The same rows in every form that is read."""

from __future__ import annotations

import csv
import gzip
import json
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from doppel.grammar import generate

#: Names of the forms; those after them hold texts alone.
FORMS = (
    "jsonl",
    "json",
    "csv",
    "tsv",
    "semicolons",
    "bom",
    "csv.gz",
    "csv.zip",
    "jsonl.gz",
    "parquet",
    "saved",
    "shards",
)
TEXT_FORMS = ("txt", "txt.gz", "strings")


def write_table(folder: Path, form: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows, which have the same columns, in a form; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    if form == "strings":
        return _text(folder / "rows.json", json.dumps([row["text"] for row in rows]))
    if form.startswith("txt"):
        return _text(folder / f"rows.{form}", "".join(f"{row['text']}\n" for row in rows))
    if form == "json":
        return _text(folder / "rows.json", json.dumps(list(rows), indent=1))
    if form.startswith("jsonl"):
        return _text(folder / f"rows.{form}", lines)
    if form in ("parquet", "saved", "shards"):
        return _arrow(folder, form, rows)
    path = folder / f"rows.{form if '.' in form or form == 'tsv' else 'csv'}"
    plain = folder / "plain.csv"
    with plain.open("w", newline="", encoding="utf-8-sig" if form == "bom" else "utf-8") as file:
        delimiter = {"tsv": "\t", "semicolons": ";"}.get(form, ",")
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    content = plain.read_text(encoding="utf-8")
    plain.unlink()
    return _text(path, content)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Write rows as JSON lines; returns the path."""
    return _text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


@cache
def made_turns(number: int, seed: int) -> list[dict[str, str]]:
    """Requests of the embedded grammar with their trees, which a test must not change."""
    return [{"said": turn.utterance, "tree": turn.parse} for turn in generate(number, seed=seed, skew=1.0)]


def _text(path: Path, content: str) -> str:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(path.stem, content.encode())
    else:
        path.write_bytes(content.encode())
    return str(path)


def _arrow(folder: Path, form: str, rows: Sequence[dict[str, Any]]) -> str:
    """Parquet, in one file or in two; or what ``save_to_disk`` of Hugging Face's ``datasets`` leaves."""
    table = pyarrow.Table.from_pylist(list(rows))
    parts = [table.slice(0, len(rows) // 2), table.slice(len(rows) // 2)]
    if form == "parquet":
        parquet.write_table(table, folder / "rows.parquet", row_group_size=7)
        return str(folder / "rows.parquet")
    for number, part in enumerate(parts):
        name = f"{'data' if form == 'saved' else 'train'}-{number:05}-of-00002"
        if form == "shards":
            parquet.write_table(part, folder / f"{name}.parquet")
        else:
            with pyarrow.ipc.new_stream(folder / f"{name}.arrow", table.schema) as stream:
                stream.write_table(part)
    if form == "saved":
        files = [{"filename": path.name} for path in sorted(folder.glob("*.arrow"))]
        (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    return str(folder)

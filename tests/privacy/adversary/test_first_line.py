"""The attacker reads error messages of a table without a header: its first line is somebody's row."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples
from doppel.errors import DataError

ROW = ("diabetes", "Szczecin", "insulin")
LINES = {"a.csv": ",".join(ROW), "a.tsv": "\t".join(ROW), "words.csv": ROW[0], "a.jsonl": f'{{"{ROW[0]}": 1}}'}


@pytest.mark.parametrize("columns", [None, Columns(text="question"), Columns(unit="who", label=["a", "b"])])
@pytest.mark.parametrize("name", [*LINES, "a.parquet"])
def test_no_error_quotes_it_though_its_words_could_be_names(tmp_path: Path, name: str, columns: Columns | None) -> None:
    path = tmp_path / name
    if name == "a.parquet":  # as other programs make one of a table without a header
        parquet.write_table(pyarrow.table({word: ["x"] for word in ROW}), path)
    else:
        path.write_text(f"{LINES[name]}\n" * 3)
    with pytest.raises(DataError, match="columns: none") as refused:
        read_examples(str(path), "utterance", columns=columns)
    assert str(path) in refused.value.about
    assert not any(word in str(refused.value) for word in ROW)


@pytest.mark.parametrize("header", [True, False])
def test_columns_of_one_name_are_told_by_their_places(tmp_path: Path, header: bool) -> None:
    path = tmp_path / ("a.csv" if header else "a.parquet")
    if header:
        path.write_text("diabetes,no,diabetes\nno,no,no\n")
    else:
        table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, ["diabetes", "no", "diabetes"])
        parquet.write_table(table, path)
    with pytest.raises(DataError, match="columns 1 and 3 have one name") as refused:
        read_examples(str(path), "utterance")
    assert "diabetes" not in str(refused.value)


def test_names_that_the_configuration_gives_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,label,mood\nhi,a,b\n")
    with pytest.raises(DataError, match=r"'utterance'.* of its 3 columns: label;") as refused:
        read_examples(str(path), "utterance")
    assert "question" not in str(refused.value)
    with pytest.raises(DataError, match=r"'parse'.* columns: question, label, mood\)"):
        read_examples(str(path), "utterance", needs=["parse"], columns=Columns(text="question", unit="mood"))

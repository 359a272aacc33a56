"""What a file is decides how it is read, not what it is called; and what holds no rows is named for what it is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from datamodules.reading.examples import read_examples
from doppel.errors import DataError
from doppel.files import read_lines

TEXTS = ["book a table", "zebra, please"]
FORMS: dict[str, bytes] = {
    "csv": b'text,unit\nbook a table,a\n"zebra, please",b\n',
    "tsv": b"text\tunit\nbook a table\ta\nzebra, please\tb\n",
    "jsonl": b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS),
    "json": json.dumps([{"text": text} for text in TEXTS], indent=1).encode(),
    "txt": "\n".join(TEXTS).encode(),
}
TABLE = io.BytesIO()
parquet.write_table(pyarrow.table({"text": TEXTS}), TABLE)


def zipped(content: bytes, name: str = "data", *others: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/", "")
        for beside in ("__MACOSX/._data.csv", "folder/._data.csv", *others):
            archive.writestr(beside, "binary")
        archive.writestr(f"folder/{name}", content)
    return out.getvalue()


def zstandard(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compression_is_known_by_its_bytes(tmp_path: Path, form: str, compression: str) -> None:
    content = COMPRESSIONS[compression](FORMS[form])
    for ending in (f"{form}.{compression}", f"{form}.{compression.upper()}", f"{form}.gz", form):
        path = tmp_path / f"data.{ending}"
        path.write_bytes(content)
        assert [turn.utterance for turn in read_examples(str(path), "utterance")] == TEXTS, ending


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_json_lines_are_known_by_their_first_line_however_long_it_is(tmp_path: Path, encoding: str) -> None:
    texts = ["word " * 20_000, "zebra"]
    lines = "".join(json.dumps({"text": text, "unit": text[0]}) + "\n" for text in texts)
    (tmp_path / "data.txt").write_text(lines, encoding)
    turns = read_examples(str(tmp_path / "data.txt"), "user")
    assert [(turn.utterance, turn.unit) for turn in turns] == [(texts[0], "w"), ("zebra", "z")]


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_of_one_file_is_that_file(tmp_path: Path, form: str) -> None:
    for name, content in {
        "data.zip": zipped(FORMS[form], f"data.{form}"),
        f"data.{form}.ZIP": zipped(FORMS[form], f"data.{form}"),
        f"other.{form}.gz": gzip.compress(zipped(gzip.compress(FORMS[form]), f"data.{form}.gz")),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert [turn.utterance for turn in read_examples(str(tmp_path / name), "utterance")] == TEXTS, name


def test_parquet_and_json_lines_are_known_under_other_names(tmp_path: Path) -> None:
    for name, content in {
        "a.csv": TABLE.getvalue(),
        "b.data": zipped(TABLE.getvalue(), "part-0"),
        "c.csv": FORMS["jsonl"],
        "d.txt": FORMS["jsonl"],
        "e": FORMS["json"],
    }.items():
        (tmp_path / name).write_bytes(content)
        assert [turn.utterance for turn in read_examples(str(tmp_path / name), "utterance")] == TEXTS, name


def test_plain_rows_under_a_compressions_name_are_read(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.zip", "c.csv.zst"):
        (tmp_path / name).write_bytes(FORMS["csv"])
        assert len(read_examples(str(tmp_path / name), "user")) == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git lfs pull"),
        (b"\n <!DOCTYPE html>\n<html><body>zebra</body>", "web page"),
        (b"<html lang=en>zebra", "web page"),
        (b"\xd0\xcf\x11\xe0zebra", "spreadsheet"),
        (zipped(b"", "x", "xl/workbook.xml"), "spreadsheet"),
        (bytes(257) + b"ustar\x00", "tar archive"),
        (b"SQLite format 3\x00zebra", "SQLite"),
        (b"%PDF-1.7 zebra", "PDF"),
        (zipped(b"zebra", "a.csv", "b.csv"), r"data\.csv holds 2 files: it must hold exactly one"),
        (b"PK\x05\x06" + bytes(18), "holds no file"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_holds_no_rows_is_named(tmp_path: Path, content: bytes, told: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "data.csv").write_bytes(pack(content))
    with pytest.raises(DataError, match=told) as error:
        read_examples(str(tmp_path / "data.csv"), "utterance")
    assert "data.csv" in str(error.value) and "zebra" not in str(error.value)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_that_is_cut_is_damaged(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "data.csv"
    whole = COMPRESSIONS[compression](FORMS["csv"] * 2000)
    for content in (whole[: len(whole) // 2], whole[: len(whole) // 2] + b"zebra" * 20):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"data\.csv.*(damaged|columns 1 and|cells|quote)"):
            read_examples(str(path), "utterance")


def test_an_error_of_the_disk_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        list(read_lines(tmp_path))
    with pytest.raises(DataError, match="no file"):
        list(read_lines(tmp_path / "missing.gz"))

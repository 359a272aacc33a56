"""Releases are fetched whole and verified, and a closed network gets one clear line."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

import cli
from commands.data.download import DATASETS, fetch
from doppel.errors import DataError

CONTENT = b"dialogues" * 50_000


@pytest.fixture
def datasets(tmp_path: Path) -> Path:
    (tmp_path / "remote.zip").write_bytes(CONTENT)
    return tmp_path / "datasets.yaml"


def describe(datasets: Path, url: str | None = None, sha256: str | None = None) -> None:
    url = url or (datasets.parent / "remote.zip").as_uri()
    file = {"name": "train.zip", "url": url, "sha256": sha256}
    datasets.write_text(yaml.safe_dump({"toy": {"homepage": "https://example.org/toy", "files": [file]}}))


def test_a_verified_file_arrives_whole(datasets: Path, tmp_path: Path) -> None:
    describe(datasets, sha256=hashlib.sha256(CONTENT).hexdigest())
    folder = tmp_path / "data" / "toy"
    (path,) = fetch("toy", folder, datasets)
    assert path == folder / "train.zip"
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path], "no temporary file is left"


def test_a_file_that_is_there_is_not_fetched_again(datasets: Path, tmp_path: Path) -> None:
    describe(datasets, url="https://unreachable.invalid/x")
    (tmp_path / "train.zip").write_bytes(b"mine")
    assert fetch("toy", tmp_path, datasets) == [tmp_path / "train.zip"]
    assert (tmp_path / "train.zip").read_bytes() == b"mine"


def test_another_digest_is_refused_and_nothing_is_kept(datasets: Path, tmp_path: Path) -> None:
    describe(datasets, sha256="0" * 64)
    folder = tmp_path / "data"
    with pytest.raises(DataError, match="sha256"):
        fetch("toy", folder, datasets)
    assert list(folder.iterdir()) == []


def test_an_unknown_digest_is_shown_with_a_warning(
    datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(datasets)
    fetch("toy", tmp_path / "data", datasets)
    told = capsys.readouterr().err
    assert "unverified" in told
    assert hashlib.sha256(CONTENT).hexdigest() in told


@pytest.mark.parametrize("url", ["https://unreachable.invalid/x", "file:///nowhere/train.zip"])
def test_a_closed_network_says_which_file_to_put_where(datasets: Path, tmp_path: Path, url: str) -> None:
    describe(datasets, url=url)
    folder = tmp_path / "data"
    with pytest.raises(DataError) as raised:
        fetch("toy", folder, datasets)
    message = str(raised.value)
    assert "\n" not in message
    assert all(part in message for part in (url, "https://example.org/toy", str(folder / "train.zip")))


def test_an_unknown_release_lists_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'gpt'.*smcalflow"):
        fetch("gpt", tmp_path)


def test_the_command_says_where_the_files_are(
    datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(datasets, sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(fetch, "__defaults__", (datasets,))
    assert cli.main(["download", "toy", "--out", str(tmp_path / "here")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'here' / 'train.zip'}\n"


def test_the_shipped_list_is_complete() -> None:
    for release in yaml.safe_load(DATASETS.read_text()).values():
        for file in release["files"]:
            assert file["url"].startswith("https://")
            assert file["sha256"] is None or len(file["sha256"]) == 64

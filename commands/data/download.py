"""Published releases, verified and whole."""

from __future__ import annotations

import hashlib
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from doppel.errors import DataError
from doppel.files import whole_file

#: Releases with their files, URLs and digests.
DATASETS = Path(__file__).with_name("datasets.yaml")

_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 30


def download(dataset: str, *, out: Path | None = None) -> None:
    """Fetch a published data set (SMCalFlow 2.0, TreeDST).

    Args:
        dataset: Name of the release: smcalflow or treedst.
        out: Folder to write to; data/DATASET if it is left out.
    """
    for path in fetch(dataset, out or Path("data") / dataset):
        print(path)


def fetch(dataset: str, directory: Path, datasets_file: Path = DATASETS) -> list[Path]:
    """Fetch the files of a release that are not there yet.

    A file appears under its name only when it is complete and its digest is right.

    Args:
        dataset: Name of the release in the YAML file.
        directory: Folder that the files are written to; it is made if need be.
        datasets_file: YAML file ``{name: {homepage, files: [{name, url, sha256}]}}``; a ``sha256`` of null is not
            verified, and the digest is shown with a warning.

    Returns:
        Paths of all files of the release.

    Raises:
        DataError: The release is unknown, the network is closed, a file is not found or has another digest, or the
            folder cannot be written.
    """
    datasets: dict[str, Any] = yaml.safe_load(datasets_file.read_text(encoding="utf-8"))
    if dataset not in datasets:
        raise DataError(f"there is no data set {dataset!r} in {datasets_file}: choose from {', '.join(datasets)}")
    release = datasets[dataset]
    return [_fetch(file, directory / file["name"], release["homepage"], datasets_file) for file in release["files"]]


def _fetch(file: dict[str, Any], target: Path, homepage: str, datasets_file: Path) -> Path:
    if target.exists():
        with target.open("rb") as content:
            _verify(target, hashlib.file_digest(content, "sha256").hexdigest(), file["sha256"], datasets_file)
        sys.stderr.write(f"{target} is there already\n")
        return target
    with whole_file(target, "give another --out") as out:
        try:
            with urllib.request.urlopen(file["url"], timeout=_TIMEOUT_SECONDS) as response:
                total, digest = int(response.headers.get("Content-Length") or 0), hashlib.sha256()
                with tqdm(total=total or None, desc=target.name, unit="B", unit_scale=True) as progress:
                    while chunk := response.read(_CHUNK_BYTES):
                        out.write(chunk)
                        digest.update(chunk)
                        progress.update(len(chunk))
        except urllib.error.HTTPError as error:
            raise DataError(
                f"{file['url']} answers {error.code} ({error.reason}): look for the file at {homepage}, "
                f"correct its url in {datasets_file}, or put it at {target}"
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            raise DataError(
                f"cannot fetch {file['url']} ({reason}): on a machine with network access take {file['name']} "
                f"from {homepage} and put it at {target}"
            ) from None
        if out.tell() < total:
            raise DataError(f"{file['url']} broke off after {out.tell()} of {total} bytes: run the command again")
        _verify(target, digest.hexdigest(), file["sha256"], datasets_file)
    return target


def _verify(path: Path, seen: str, wanted: str | None, datasets_file: Path) -> None:
    if wanted is None:
        sys.stderr.write(
            f"warning: {path} is unverified: its sha256 is {seen}, and {datasets_file} has none to compare\n"
        )
    elif seen != wanted:
        raise DataError(
            f"the sha256 of {path} is {seen}, but {datasets_file} says {wanted}: remove the file and fetch it again"
        )

"""Data sets of the Hugging Face hub, read into memory: none of their text is kept on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

from doppel.errors import DataError

if TYPE_CHECKING:
    from huggingface_hub import HfFileSystem

#: Where the hub keeps what it made of data sets of other forms, and where the rest lies.
_REVISIONS = ("refs/convert/parquet", "main")
_ARGUMENTS = ("split", "config", "revision")


def is_on_hub(path: str) -> bool:
    """Return whether a path names a data set of the hub rather than a file."""
    return path.startswith("hf:")


def hub_files(path: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each Parquet file of a split, in order.

    The key of a private data set is that of ``hf auth login``, or ``HF_TOKEN``. Nodes without a network need a copy:
    ``hf download NAME --repo-type dataset --local-dir FOLDER``, and its Parquet files as ``data.train_path``.

    Args:
        path: ``hf:OWNER/NAME?split=train``, with ``&config=…`` where the data set has several, and ``&revision=…`` for
            another branch or commit than the newest.

    Raises:
        DataError: The path says less or more than that, there is no such split, or the hub cannot be reached.
    """
    name, _, query = path.removeprefix("hf:").partition("?")
    arguments = dict(parse_qsl(query, keep_blank_values=True))
    for argument in arguments:
        if argument not in _ARGUMENTS:
            raise DataError(f"unknown argument {argument!r}; known are {', '.join(_ARGUMENTS)}", about=path)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise DataError("give hf:OWNER/NAME?split=train", about=path)
    from huggingface_hub import HfFileSystem
    from huggingface_hub.errors import HTTPError

    hub, revision = HfFileSystem(), arguments.get("revision")
    try:
        for branch in (revision,) if revision else _REVISIONS:
            root = f"datasets/{name}@{quote(branch, safe='')}"
            if files := _list(hub, root):
                break
        for file in _of_split(files, arguments.get("split", "train"), arguments.get("config"), path):
            yield f"hf:{name}/{file}", hub.cat_file(f"{root}/{file}")
    except (HTTPError, OSError, ValueError) as error:
        why = error.__cause__ if isinstance(error, FileNotFoundError) else error
        raise DataError(
            f"{path} cannot be read from the hub ({type(why).__name__}): check the name, `hf auth login` for a private "
            "data set, and the network; or download it elsewhere and name its Parquet file"
        ) from None


def _list(hub: HfFileSystem, root: str) -> list[str]:
    """The Parquet files of a revision; none where there is no such revision."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return [file.removeprefix(f"{root}/") for file in hub.find(root) if file.endswith(".parquet")]
    except FileNotFoundError as error:
        if isinstance(error.__cause__, RevisionNotFoundError):
            return []
        raise


def _of_split(files: list[str], split: str, config: str | None, path: str) -> list[str]:
    """The files of one split of one configuration: ``CONFIG/SPLIT/0000.parquet``, ``data/SPLIT-00000-….parquet``."""
    by_folder: dict[str, list[str]] = {}
    for file in map(PurePosixPath, files):
        folders = list(file.parts[:-1])
        part = folders.pop() if folders and re.match(r"\d", file.stem) else re.split(r"[-.]", file.stem)[0]
        if part == split:
            by_folder.setdefault("/".join(folders), []).append(str(file))
    if config is not None:
        by_folder = {folder: listed for folder, listed in by_folder.items() if config in folder.split("/")}
    if len(by_folder) == 1:
        return sorted(*by_folder.values())
    if by_folder:
        raise DataError(
            f"the data set has several configurations: add &config= and one of {sorted(by_folder)}", about=path
        )
    what = f"Parquet file of the split {split!r}" + (f" and the configuration {config!r}" if config else "")
    raise DataError(f"the hub has no {what}: name another, or download the data set and give its file", about=path)

"""Files by what they are: a compression is known by its first bytes, whatever a file is called."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from doppel.errors import DataError

#: What reading a damaged file raises.
DAMAGED = (EOFError, OSError, lzma.LZMAError, zipfile.BadZipFile, zlib.error)
#: Endings that tell of a compression alone.
ENDINGS = frozenset({".gz", ".zip", ".bz2", ".xz", ".zst"})
#: Bytes that tell what a file is.
_LONGEST = 10
#: How many compressions lie within one another, at most.
_DEEPEST = 3


def ending(path: str | Path) -> str:
    """Return the ending of a file that tells its form, without that of a compression: ``.csv`` of ``a.csv.gz``."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in ENDINGS else name).suffix.lower()


@contextmanager
def open_data(
    path: str | Path, kind: str | None = None, content: bytes | None = None
) -> Iterator[tuple[str, io.BufferedReader]]:
    """Open a file for reading bytes, decompressed: gzip, bzip2, xz, Zstandard, or a zip archive of one file.

    Args:
        path: The file.
        kind: The end of the name of the one file that is meant where an archive holds several; None: the path's own.
        content: The bytes of the file, if they are at hand: then none is opened.

    Yields:
        The name, with that of the file within an archive behind it where the archive's own does not end so
        (``a.zip/b.csv``), and a stream of the bytes.

    Raises:
        DataError: The file is missing or may not be read, or is an archive of none or several such files.
    """
    path, kind = Path(path), ending(path) if kind is None else kind
    name = str(path)
    with ExitStack() as stack:
        try:
            raw: Any = path.open("rb") if content is None else io.BytesIO(content)
            stream = stack.enter_context(io.BufferedReader(raw))
            for _ in range(_DEEPEST):
                head = stream.peek(_LONGEST)[:_LONGEST]
                if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                    archive = stack.enter_context(zipfile.ZipFile(stream))
                    member = _member(archive, path, kind)
                    told = Path(Path(name).stem).suffix.lower() == Path(member).suffix.lower()
                    name = name if told else f"{name}/{member}"
                    inner: Any = archive.open(member)
                else:
                    opener = next((open_ for magic, open_ in _OPENERS if re.match(magic, head, re.S)), None)
                    if opener is None:
                        break
                    inner = opener(stream, path)
                stream = stack.enter_context(io.BufferedReader(inner))
        except PermissionError:
            raise DataError(f"{path} may not be read by this user: change its permissions or its owner") from None
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise DataError(f"no file {path}: correct the path, or run first what writes it") from None
        except zipfile.BadZipFile:
            raise DataError(f"{path} is no readable zip file: fetch it again") from None
        except DAMAGED as error:
            refuse_other(error)
            raise DataError("the compressed file is damaged: fetch it again", about=path) from None
        yield name, stream


def refuse_other(error: BaseException) -> None:
    """Raise an error again that is the machine's: of those in :data:`DAMAGED` an OSError with a number."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _member(archive: zipfile.ZipFile, path: Path, kind: str) -> str:
    """The name of the file that is meant, without what systems put beside it."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if "xl/workbook.xml" in names:
        raise DataError(f"{path} is a spreadsheet: save the sheet as .csv (“CSV UTF-8”)")
    names = [name for name in names if not name.startswith("__MACOSX") and not Path(name).name.startswith(".")]
    meant = [name for name in names if name.lower().endswith(kind)]
    if len(meant) != 1:
        meant = names
    if len(meant) != 1:
        what = f"{len(names)} files" if names else "no file"
        raise DataError(f"{path} holds {what}: it must hold exactly one" + (f" {kind} file" if kind else ""))
    return meant[0]


def _zstandard(stream: IO[bytes], path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise DataError(
            f"{path} is compressed by Zstandard, which pyarrow reads, and that is not installed: pip install "
            "--constraint constraints.txt pyarrow, or decompress it"
        ) from None
    return pyarrow.input_stream(stream, compression="zstd")


_OPENERS: tuple[tuple[bytes, Callable[[IO[bytes], Path], Any]], ...] = (
    (rb"\x1f\x8b", lambda stream, _: gzip.GzipFile(fileobj=stream)),
    (rb"BZh[1-9]1AY&SY", lambda stream, _: bz2.BZ2File(stream)),
    (rb"\xfd7zXZ\x00", lambda stream, _: lzma.LZMAFile(stream)),  # noqa: SIM115
    (rb"\x28\xb5\x2f\xfd", _zstandard),
)

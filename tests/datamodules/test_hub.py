"""A data set of the hub is read into memory: over HTTP from a server that answers as the hub does."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from datamodules.reading.hub import hub_files
from doppel.errors import DataError

ROOT = Path(__file__).resolve().parents[2]


def content(*texts: str) -> bytes:
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": list(texts)}), stream)
    return stream.getvalue()


FILES = {
    "default/train/0000.parquet": content("a", "b"),
    "default/train/0001.parquet": content("c"),
    "default/test/0000.parquet": content("z"),
    "other/train/0000.parquet": content("y"),
}


class Hub(BaseHTTPRequestHandler):
    """The tree of a revision, and its files."""

    def do_GET(self) -> None:
        """Answer what the client of the hub asks for."""
        known, _, name = self.path.partition("/refs%2Fconvert%2Fparquet/")
        if self.path.startswith("/api/datasets/ana/talk/tree/refs%2Fconvert%2Fparquet"):
            tree = [{"type": "file", "path": p, "size": len(c), "oid": "0"} for p, c in FILES.items()]
            self._send(200, json.dumps(tree).encode())
        elif self.path == "/api/datasets/ana/talk/revision/refs%2Fconvert%2Fparquet":
            self._send(200, json.dumps({"id": "ana/talk", "sha": "0"}).encode())
        elif self.path.startswith("/api/datasets/ana/talk/"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif known == "/datasets/ana/talk/resolve" and name in FILES:
            self._send(200, FILES[name])
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_files_of_a_split_are_read_in_order_and_nothing_is_kept_on_disk(endpoint: str, tmp_path: Path) -> None:
    program = """
import sys
from datamodules.reading.files import content_digest
from datamodules.reading.examples import read_examples
from doppel.errors import DataError
for path in sys.argv[1:]:
    try:
        print([turn.utterance for turn in read_examples(path, "utterance")], len(content_digest(path)))
    except DataError as error:
        print(error)
"""
    base = "hf:ana/talk"
    paths = [base, f"{base}?config=default", f"{base}?config=other", f"{base}?split=dev", "hf:ana/nothing"]
    paths.append(f"{base}?revision=none/such")
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "DOPPEL_KEY": str(tmp_path / "key")}
    home |= {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_TOKEN": "hf_of_a_private_data_set"}
    found = subprocess.run(
        [sys.executable, "-c", program, *paths],
        env={**os.environ, **home, "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    several, default, other, dev, nothing, none_such = found.stdout.splitlines()
    assert "&config=" in several and "['default', 'other']" in several
    assert default.startswith("['a', 'b', 'c'] ") and other.startswith("['y'] ")
    assert dev.startswith(f"{base}?split=dev: ") and "'dev'" in dev
    assert "hf:ana/nothing" in nothing and "RepositoryNotFoundError" in nothing
    assert "the hub has no Parquet file of the split 'train'" in none_such
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} <= {"key", "key.lock"}


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_not_waited_for() -> None:
    """It takes the connection and says nothing; the client waits ten seconds, here one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "NO_PROXY": "127.0.0.1"}
        found = subprocess.run(
            [sys.executable, "-c", "from datamodules.reading.hub import hub_files; next(hub_files('hf:ana/talk'))"],
            env={**os.environ, **place, "HF_HUB_ETAG_TIMEOUT": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "DataError: hf:ana/talk cannot be read from the hub (ReadTimeout): check" in found.stderr


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("hf:ana/talk?splt=train", "'splt'.*split"),
        ("hf:a/b/c", "hf:OWNER/NAME"),
        ("hf:talk", "hf:OWNER/NAME"),
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_asked(path: str, named: str) -> None:
    with pytest.raises(DataError, match=named) as refused:
        next(hub_files(path))
    assert refused.value.about == path

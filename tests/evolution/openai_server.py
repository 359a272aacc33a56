"""A small server of 127.0.0.1 that speaks OpenAI's protocol, and fails as real ones do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Number of a call and the words that it asks with → what comes of it: a text, a status, or ``hang`` or ``torn``.
Answer = Callable[[int, str], str | int]


class Server:
    """What it was asked, and where it is.

    Attributes:
        url: Of the protocol's version.
        asked: The words of each call, in their order.
        bodies: All that was sent, as bytes.
        headers: Of each call.
        most: Calls that were under way at a time, at most.
        refuse: What is said of a call with a body that is refused (400); None of one that is taken.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer, self.url = answer, ""
        self.asked, self.bodies, self.headers = list[str](), list[bytes](), list[dict[str, str]]()
        self.most = self._under_way = 0
        self.lock = threading.Lock()
        self.refuse: Callable[[dict[str, Any]], str | None] = lambda body: None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        with self.lock:
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            yield
        finally:
            with self.lock:
                self._under_way -= 1


@contextmanager
def serve(answer: Answer, hang: float = 5.0) -> Iterator[Server]:
    """Serve until the block ends."""
    server = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with server.under_way():
                words = json.loads(body)["messages"][0]["content"]
                with server.lock:
                    number = len(server.asked)
                    server.asked.append(words)
                    server.bodies.append(body)
                    server.headers.append(dict(self.headers))
                if (said := server.refuse(json.loads(body))) is not None:
                    self._send(400, json.dumps({"error": {"message": said}}).encode())
                else:
                    self._reply(number, words, server.answer(number, words))

        def _reply(self, number: int, words: str, what: str | int) -> None:
            if what == "hang":
                time.sleep(hang)
                self.close_connection = True
                return
            content = json.dumps(
                {
                    "choices": [{"message": {"role": "assistant", "content": what}}],
                    "usage": {"prompt_tokens": len(words.split()), "completion_tokens": 5},
                }
            ).encode()
            content = content[: len(content) // 2] if what == "torn" else content
            self._send(what if isinstance(what, int) else 200, content)

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0.01")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()

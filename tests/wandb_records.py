"""Reads what an offline Weights & Biases run has written."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    """Records of a ``.wandb`` file: a LevelDB log (blocks of chunks) of protocol buffers, after seven bytes."""
    data, position, record = path.read_bytes(), _HEADER, b""
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        chunk = data[position + _HEADER : position + _HEADER + length]
        position += _HEADER + length
        record = chunk if kind in (_FULL, _FIRST) else record + chunk
        if kind in (_FULL, _LAST):
            yield wandb_internal_pb2.Record.FromString(record)


class OfflineRun:
    """One piece of a run: what one process has written.

    Attributes:
        run: Its RunFolder.
        config: Configuration, by key.
        history: Rows of logged values.
        summary: Final values, by key.
        used: (name, digest) of the artifacts that it read.
        logged: (name, digest) of those that it wrote.
        artifacts: All artifact records.
        step_metrics: X axis by metric or glob.
        is_preempted: Whether it was told to stop.
    """

    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("*.wandb")
        self.config: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.artifacts: list[Any] = []
        self.step_metrics: dict[str, str] = {}
        self.is_preempted = False
        for record in records(path):
            match record.WhichOneof("record_type"):
                case "run":
                    self.run = record.run
                    self._configure(record.run.config)
                case "config":
                    self._configure(record.config)
                case "history":
                    self.history.append({_key(item): json.loads(item.value_json) for item in record.history.item})
                case "summary":
                    self.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
                case "artifact":
                    self.artifacts.append(record.artifact)
                case "metric":
                    self.step_metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
                case "preempting":
                    self.is_preempted = True
        self.used = {(a.name, a.digest) for a in self.artifacts if a.use_after_commit}
        self.logged = {(a.name, a.digest) for a in self.artifacts if not a.use_after_commit}

    def _configure(self, config: Any) -> None:
        self.config |= {_key(item): json.loads(item.value_json) for item in config.update}

    @property
    def keys(self) -> set[str]:
        """Names of everything that was logged."""
        return {key for row in self.history for key in row} | set(self.summary)


def pieces(stage: Path) -> list[OfflineRun]:
    """The pieces of a stage's run, in the order of their start."""
    return [OfflineRun(folder) for folder in sorted((stage / "wandb").glob("offline-run-*"))]


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)

"""Writes sampled texts as JSON lines while they are sampled, and resumes where it stopped."""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from callbacks.sample_metrics import cut_off_warning, missing_warning, none_will_do, sample_metrics, summary
from callbacks.wandb_artifacts import harmless
from datamodules.private_data import is_disclosable
from datamodules.text_format import TextFormat
from doppel.errors import UserError
from doppel.files import parse_json, sha256_of, write_json, write_json_lines
from doppel.lispress import is_valid
from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.fingerprint import keyed_fingerprint
from lightning_modules.sampling import Sample
from lightning_modules.training.logical_batch_module import LogicalBatchModule


class SyntheticWriter(BasePredictionWriter):
    """Writes ``{"utterance": …, "parse": …, "stage": …}`` lines, one per sample, in order of their indices.

    Every rank appends to ``OUTPUT.rank{r}.jsonl.part``, on disk after every batch; at the end rank 0 merges the parts
    into ``OUTPUT`` in one atomic step and writes ``OUTPUT.metrics.json``
    (:func:`~callbacks.sample_metrics.sample_metrics`). A resumed run puts the indices of the parts into
    ``trainer.datamodule.done``; indices name random streams (:func:`doppel.decoding.sampling.sample_texts`), so no
    numbers are drawn twice, on any number of ranks. Parts and ``OUTPUT`` of another model, other prompts or other
    tables of grammar and placeholders are refused, by fingerprints in each part and in the metrics. A sample that the
    model gave up has no line.

    Formal guarantees:
        What is written of public text, or of a release, is public or a release itself, and so are its metrics. Where a
        data module does not say that it reads such text (:func:`~datamodules.data_module.is_disclosable`), such as the
        private utterances that a parser annotates, no count and no share is computed, logged or said, no sample goes to
        Weights & Biases, and hashes of the content are keyed (:func:`~doppel.privacy.fingerprint.keyed_fingerprint`).
        The lines themselves are then private.

    Args:
        output_path: The file of synthetic lines, such as ``runs/demo/synthetic.jsonl``.
        stage: Written on every line: which model sampled it.
        log_samples: Samples shown as a table in Weights & Biases; 0 shows none, and of private text none is shown.
    """

    def __init__(self, output_path: str, stage: str, log_samples: int = 20) -> None:
        super().__init__(write_interval="batch")
        self.output_path = Path(output_path)
        self.stage = stage
        self.log_samples = log_samples
        self._metrics_path = Path(f"{output_path}.metrics.json")
        self._is_disclosable = False
        self._is_finished = False
        self._done: set[int] = set()
        self._found: list[dict[str, Any]] = []  # what the samples on disk were made by
        self._made_by: dict[str, Any] = {}  # what this run's are made by
        self._num_resumed = 0
        self._started: float | None = None
        self._part: BinaryIO | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find what is on disk; Lightning asks for the predict dataloader after this hook."""
        super().setup(trainer, pl_module, stage)
        if stage != "predict":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "done") or not hasattr(data, "num_total"):
            raise UserError(
                f"nothing says how many samples {self.output_path} is to have, and which may be left out: predict with "
                "a datamodules.data_module.PredictionDataModule, which has `num_total` and `done`"
            )
        self._is_disclosable, self._started, self._made_by = is_disclosable(data), None, {}
        # Rank 0 looks for all: on a network file system ranks may not see the same files at the same moment.
        found = self._look() if trainer.is_global_zero else (False, set(), [])
        self._is_finished, self._done, self._found = trainer.strategy.broadcast(found)
        if self._is_finished:
            self._done = set(range(data.num_total))
            rank_zero_info(f"{self.output_path} is finished and is not sampled again; delete it to sample anew.")
        elif self._done:
            how_many = f" after {len(self._done)} samples" if self._is_disclosable else ""
            rank_zero_info(f"{self.output_path}: resuming{how_many}.")
        self._num_resumed = len(self._done)
        data.done = set(self._done)
        data.allow_zero_length_dataloader_with_multiple_devices = True  # few may be left for many ranks

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse files of others, and start the clock."""
        self._check_origin(trainer, pl_module)
        self._started = time.perf_counter()

    def write_on_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, prediction: Sequence[Sample] | None, *_: Any
    ) -> None:
        """Append the samples of one batch to this rank's part and wait until they are on disk."""
        if not prediction:
            return
        text_format = cast(TextFormat, pl_module.text_format)
        lines = []
        for sample in prediction:
            if sample.index in self._done:
                raise RuntimeError(
                    f"sample {sample.index} of {self.output_path} came twice: the datamodule must give every index "
                    "once and leave out the indices in its `done`"
                )
            self._done.add(sample.index)
            prompt: dict[str, str | None] = {} if text_format.source is None else {text_format.source: sample.prompt}
            texts: dict[str, str | None] = {"utterance": None, "parse": None, **prompt, text_format.target: sample.text}
            lines.append(
                {
                    "index": sample.index,
                    "finished": sample.finished,
                    "valid": is_valid(sample.text) if text_format.target == "parse" else None,
                    "faults": sample.faults,
                    "dropped": sample.is_dropped,
                    "num_slots": sample.slots,
                    "record": {**texts, "stage": self.stage, **sample.fields},
                }
            )
        self._append(trainer.global_rank, lines)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Merge the parts, once every rank is done.

        This is the only hook that a rank without a batch reaches too, and that a failed run does not reach.
        """
        if stage != "predict":
            return
        self._close_part()
        self._check_origin(trainer, pl_module)
        trainer.strategy.barrier("synthetic_parts_written")
        if trainer.is_global_zero and not self._is_finished:
            self._merge(trainer, pl_module)
        trainer.strategy.barrier("synthetic_parts_merged")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the part; what it holds is kept for the next run."""
        self._close_part()

    def _check_origin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare what is on disk with the weights, which Lightning loads after ``setup``, and the rest.

        Every rank does so by itself, for a rank without a batch reaches ``teardown`` alone.
        """
        if self._made_by:
            return
        self._made_by = _origin(trainer, pl_module)
        for name, value in self._made_by.items():
            if any(made_by.get(name) != value for made_by in self._found):
                of_whom = f"{self.output_path} holds" if self._is_finished else f"parts of {self.output_path} hold"
                raise UserError(
                    f"{of_whom} samples of other {name} than this run's: predict with the {name} that they are of, "
                    f"give another output_path, or delete {self.output_path.name}* to sample all anew"
                )

    def _look(self) -> tuple[bool, set[int], list[dict[str, Any]]]:
        """Whether the output is finished, and otherwise the indices in the parts; what all that was made by.

        Raises:
            UserError: The output is none that a sampling has finished, or a part is of another stage.
        """
        if self.output_path.exists():
            made_by = self._read_metrics()
            if made_by.get("sha256") == self._digest():
                self._delete_parts()  # merged, but the run was stopped before it deleted them
                return True, set(), [made_by]
            if not self._parts():  # else the run was stopped after it had merged them, and before it wrote the metrics
                raise UserError(
                    f"{self.output_path} is not what a sampling wrote, as {self._metrics_path.name} would tell: give "
                    "another output_path, or delete it to sample anew"
                )
        done: set[int] = set()
        found: list[dict[str, Any]] = []
        for path in self._parts():
            header, lines = _read_part(path)
            if not lines:  # the header alone binds nobody
                path.unlink()
                continue
            stage = header.pop("stage", self.stage)
            if stage != self.stage:
                raise UserError(
                    f"{path} holds samples of stage {stage!r}, but this run's is {self.stage!r}: give every stage its "
                    "own output_path, or delete the file"
                )
            done.update(line["index"] for line in lines)
            found.append(header)
        return False, done, found

    def _read_metrics(self) -> dict[str, Any]:
        if not self._metrics_path.is_file():
            return {}
        text, remedy = self._metrics_path.read_text(encoding="utf-8"), "delete it and the samples beside it"
        metrics = parse_json(text, self._metrics_path, 1, f"{remedy} to sample anew")
        return metrics if isinstance(metrics, dict) else {}

    def _digest(self) -> str:
        """That of the output, keyed where its text is private."""
        digest = sha256_of(self.output_path)
        return digest if self._is_disclosable else keyed_fingerprint(digest)

    def _parts(self) -> list[Path]:
        return sorted(self.output_path.parent.glob(f"{glob.escape(self.output_path.name)}.rank*.jsonl.part"))

    def _delete_parts(self) -> None:
        for path in self._parts():
            path.unlink()

    def _append(self, rank: int, lines: list[dict[str, Any]]) -> None:
        """Write lines to this rank's part; a part that is new begins with what its samples are made by."""
        if self._part is None:
            path = self.output_path.with_name(f"{self.output_path.name}.rank{rank}.jsonl.part")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._part = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
            if not path.stat().st_size:
                lines = [{"stage": self.stage, **self._made_by}, *lines]
        self._part.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        self._part.flush()
        os.fsync(self._part.fileno())

    def _close_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _merge(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write output and metrics, in this order, and delete the parts last: killed anywhere, nothing is lost."""
        lines = {line["index"]: line for path in self._parts() for line in _read_part(path)[1]}
        indices = range(trainer.datamodule.num_total)  # type: ignore[attr-defined]
        if any(index not in lines for index in indices):
            how_many = f": only {len(lines)} samples are in its parts" if self._is_disclosable else ""
            rank_zero_warn(
                f"{self.output_path} is not written yet{how_many}. "
                "Run the same command again, without limit_predict_batches, to sample the others."
            )
            return
        ordered = [lines[index] for index in indices]
        records = [line["record"] for line in ordered if not line["dropped"]]
        metrics = sample_metrics(ordered) if self._is_disclosable else None
        if not records:
            self._delete_parts()  # which would keep other settings of sampling from being tried
            raise UserError(none_will_do(metrics, self.output_path, pl_module))
        warning = None
        if metrics is not None:
            warnings = cut_off_warning(metrics, pl_module, self.output_path), missing_warning(metrics)
            warning = "; ".join(filter(None, warnings)) or None
            if self._started is not None:
                seconds = time.perf_counter() - self._started
                metrics["synthetic/samples_per_second"] = (len(lines) - self._num_resumed) / seconds
        write_json_lines(self.output_path, records)
        made_by = {**self._made_by, "sha256": self._digest(), "warning": warning}
        known = {name: value for name, value in made_by.items() if value is not None}
        write_json(self._metrics_path, {**(metrics or {}), **known})
        self._delete_parts()
        if metrics is None:
            rank_zero_info(f"{self.output_path} is written; it holds text that was not declared public.")
            return
        if warning is not None:
            rank_zero_warn(f"{self.output_path}: {warning}")
        for logger in trainer.loggers:
            with harmless():
                logger.log_metrics(metrics)
                if isinstance(logger, WandbLogger) and (shown := records[: self.log_samples]):
                    columns = [name for name in shown[0] if any(record[name] is not None for record in shown)]
                    data = [[record[name] for name in columns] for record in shown]
                    logger.log_table(key="synthetic/samples", columns=columns, data=data)
        rank_zero_info(f"{self.output_path}: {summary(metrics)}")


def _origin(trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
    """Fingerprints of what the samples are made by; None for what there is not.

    Of a grammar they are those of its tables, for the name of a notation is no file.
    """
    grammar = getattr(getattr(pl_module, "sampling", None), "grammar", None) or []
    names = [grammar] if isinstance(grammar, str) else grammar
    tables = [Path(os.path.expandvars(name)).expanduser() for name in names]
    slots = getattr(pl_module.text_format, "slot_table", None)
    return {
        "weights": pl_module.weights_digest()
        if isinstance(pl_module, LogicalBatchModule)
        else weights_fingerprint(pl_module.state_dict()),
        "prompts": getattr(trainer.datamodule, "prompts_digest", None),  # type: ignore[attr-defined]
        "grammar": [sha256_of(table) for table in tables if table.is_file()] or None,
        "slots": None if slots is None else slots.digest_with_values,
    }


def _read_part(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a part file, which says what the samples are made by, and the others.

    A torn last line is cut off.

    Raises:
        UserError: A line before the last cannot be read.
    """
    lines: list[dict[str, Any]] = []
    raw_lines = path.read_bytes().splitlines(keepends=True)
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = cast(dict[str, Any], json.loads(raw)) if raw.endswith(b"\n") else None
        except ValueError:
            line = None
        if line is None and number == len(raw_lines):
            os.truncate(path, sum(map(len, raw_lines[:-1])))
        elif line is None or ("index" in line) is (number == 1):
            raise UserError(
                "not a line that this program wrote; delete the file to resample", about=f"{path}, line {number}"
            )
        else:
            lines.append(line)
    return (lines[0] if lines else {}), lines[1:]

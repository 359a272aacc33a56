"""Writes sampled texts as JSON lines while they are sampled, and resumes where it stopped."""

from __future__ import annotations

import glob
import hashlib
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
from lightning.pytorch.utilities.data import sized_len

from callbacks.sample_metrics import cut_off_warning, faults_in_words, missing_warning, sample_metrics, sampling_field
from callbacks.wandb_artifacts import harmless
from datamodules.codec import Codec
from datamodules.data_module import may_be_told
from doppel.errors import UserError
from doppel.files import parse_json, write_json, write_json_lines
from doppel.lispress import is_valid
from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.fingerprint import keyed_fingerprint
from lightning_modules.sampling import Sample

#: What samples are made by: the first line of a part, and fields of ``OUTPUT.metrics.json``.
_MADE_BY = ("weights", "prompts", "grammar", "slots")


class SyntheticWriter(BasePredictionWriter):
    """Writes ``{"utterance": …, "parse": …, "stage": …}`` lines, one per sample, in order of their indices.

    The model's codec says which field a sample is (its target) and which its prompt is (its source); a model prompted
    with labels writes a ``"label"`` besides. While a run lasts, every rank appends to a part file of its own,
    ``OUTPUT.rank{r}.jsonl.part``, which is on disk after every batch. At the end rank 0 merges the parts into
    ``OUTPUT`` in one atomic step, writes ``OUTPUT.metrics.json`` and deletes the parts. A sample that the model gave up
    (:func:`lightning_modules.sampling.draw_samples`) has no line.

    *Resuming.* A run finds the part files of every rank, drops a torn last line, and puts the indices written so far
    into ``trainer.datamodule.done`` before the prompts are loaded; the number of ranks may change. The random stream of
    a batch is named by the indices in it (see :func:`lightning_modules.sampling.sample_texts`), so neither another
    rank nor a resumed run draws the numbers of a batch that is on disk.

    *Origin.* A part begins with fingerprints of the weights that sample, of the prompts, and of the tables of grammar
    and slots; ``OUTPUT.metrics.json`` names them too, with the SHA-256 of ``OUTPUT``. Parts of others are refused. An
    ``OUTPUT`` that exists is not sampled again: it is taken if a sampling wrote it as it is, by the same four, and
    refused otherwise, whoever put it there.

    *Privacy.* What is written of public text, or of a release, is public or a release itself, and so are the metrics:
    functions of what the model wrote. A data module that does not say that it reads such text
    (:func:`~datamodules.data_module.may_be_told`), such as the private utterances that a parser annotates, is written
    from in silence: no count and no share of it is computed, logged or said, no sample goes to Weights & Biases, and
    hashes of its content are keyed (:func:`~doppel.privacy.fingerprint.keyed_fingerprint`). The lines themselves are
    then private.

    *Metrics:* those of :func:`~callbacks.sample_metrics.sample_metrics`, and ``synthetic/samples_per_second`` of this
    run, over all ranks.

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
        self._done: set[int] = set()
        self._tells = False
        self._made_by: dict[str, Any] = {}
        self._found: list[dict[str, Any]] = []  # what the files on disk were made by
        self._num_resumed = 0
        self._is_finished = False
        self._is_cut = False
        self._limit_batches: int | float | None = None
        self._started: float | None = None
        self._part: BinaryIO | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find what is on disk; Lightning asks for the predict dataloader after this hook."""
        super().setup(trainer, pl_module, stage)
        if stage != "predict":
            return
        self._started, self._is_cut = None, False
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._tells = may_be_told(data)
        # Rank 0 looks for all: on a network file system ranks may not see the same files at the same moment.
        found = self._look() if trainer.is_global_zero else (False, set(), [])
        self._is_finished, self._done, self._found = trainer.strategy.broadcast(found)
        self._made_by, self._num_resumed = {}, len(self._done)
        if self._is_finished:
            rank_zero_info(f"{self.output_path} is finished and is not sampled again; delete it to sample anew.")
            self._limit_batches = trainer.limit_predict_batches
            trainer.limit_predict_batches = 0
            trainer.predict_loop.max_batches = []
            return
        if self._done:
            if data is None:
                raise UserError(
                    f"{self.output_path} has samples of an interrupted run, which a plain dataloader cannot skip: "
                    "predict with a datamodule that has a `done` attribute, or delete the .part files"
                )
            how_many = f" after {len(self._done)} samples" if self._tells else ""
            rank_zero_info(f"{self.output_path}: resuming{how_many}.")
        if data is not None:
            data.done = set(self._done)
            data.allow_zero_length_dataloader_with_multiple_devices = True  # few may be left for many ranks

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse files of others; start the clock, and note whether some prompts are to be left out."""
        self._check_origin(trainer, pl_module)
        self._started = time.perf_counter()
        length = sized_len(trainer.predict_dataloaders)
        self._is_cut = length is not None and sum(trainer.num_predict_batches) < length

    def write_on_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, prediction: Sequence[Sample] | None, *_: Any
    ) -> None:
        """Append the samples of one batch to this rank's part and wait until they are on disk."""
        if not prediction:
            return
        codec = cast(Codec, pl_module.codec)
        lines = []
        for sample in prediction:
            if sample.index in self._done:
                raise RuntimeError(
                    f"sample {sample.index} of {self.output_path} came twice: the datamodule must give every index "
                    "once and leave out the indices in its `done`"
                )
            self._done.add(sample.index)
            prompt: dict[str, str | None] = {} if codec.source is None else {codec.source: sample.prompt}
            texts: dict[str, str | None] = {"utterance": None, "parse": None, **prompt, codec.target: sample.text}
            lines.append(
                {
                    "index": sample.index,
                    "finished": sample.finished,
                    "valid": is_valid(sample.text) if codec.target == "parse" else None,
                    "faults": sample.faults,
                    "dropped": sample.is_dropped,
                    "num_slots": sample.slots,
                    "record": {**texts, "stage": self.stage, **sample.fields},
                }
            )
        if self._part is None:
            self._part = self._open_part(trainer.global_rank)
        self._append(lines)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Merge the parts, once every rank is done.

        This is the only hook that a rank without a batch reaches too, and that a failed run does not reach.
        """
        if stage != "predict":
            return
        self._close_part()
        self._check_origin(trainer, pl_module)
        if self._limit_batches is not None:
            trainer.limit_predict_batches = self._limit_batches
            self._limit_batches = None
        trainer.strategy.barrier("synthetic_parts_written")
        is_cut = trainer.strategy.reduce_boolean_decision(self._is_cut, all=False)
        if trainer.is_global_zero and not self._is_finished:
            self._merge(trainer, is_cut)
        trainer.strategy.barrier("synthetic_parts_merged")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the part; what it holds is kept for the next run."""
        self._close_part()

    def _check_origin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fingerprint the weights, which Lightning loads after ``setup``, and more; compare what is on disk with these.

        Every rank does so by itself, for a rank without a batch reaches ``teardown`` alone.
        """
        if self._made_by:
            return
        prompts = getattr(trainer.datamodule, "prompts_digest", None)  # type: ignore[attr-defined]
        own = [weights_fingerprint(pl_module.state_dict()), prompts, _grammar_digests(pl_module), _slots(pl_module)]
        self._made_by = dict(zip(_MADE_BY, own, strict=True))
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
        parts = self._parts()
        if self.output_path.exists():
            metrics = Path(f"{self.output_path}.metrics.json")
            told = _read_metrics(metrics)
            if told.get("sha256") == self._digest():
                for path in parts:  # merged, but the run was stopped before it deleted them
                    path.unlink()
                return True, set(), [told]
            if not parts:  # else the run was stopped after it had merged them, and before it wrote the metrics
                raise UserError(
                    f"{self.output_path} is not what a sampling wrote, as {metrics.name} would tell: give another "
                    "output_path, or delete it to sample anew"
                )
        done: set[int] = set()
        found: list[dict[str, Any]] = []
        for path in parts:
            header, lines, _ = _read_part(path)
            stage = header.pop("stage", self.stage)
            if stage != self.stage:
                raise UserError(
                    f"{path} holds samples of stage {stage!r}, but this run's is {self.stage!r}: give every stage its "
                    "own output_path, or delete the file"
                )
            done.update(line["index"] for line in lines)
            found += [header] if lines else []
        return False, done, found

    def _digest(self) -> str:
        """That of the output, keyed where its text is private."""
        digest = _sha256(self.output_path)
        return digest if self._tells else keyed_fingerprint(digest)

    def _parts(self) -> list[Path]:
        pattern = f"{glob.escape(self.output_path.name)}.rank*.jsonl.part"
        return sorted(self.output_path.parent.glob(pattern))

    def _open_part(self, rank: int) -> BinaryIO:
        path = self.output_path.with_name(f"{self.output_path.name}.rank{rank}.jsonl.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._part = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        _, lines, size = _read_part(path)
        self._part.truncate(size if lines else 0)
        if not lines:
            self._append([{"stage": self.stage, **self._made_by}])
        return self._part

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        assert self._part is not None
        self._part.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        self._part.flush()
        os.fsync(self._part.fileno())

    def _close_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _merge(self, trainer: pl.Trainer, is_cut: bool) -> None:
        parts = self._parts()
        lines = {line["index"]: line for path in parts for line in _read_part(path)[1]}
        data = trainer.datamodule  # type: ignore[attr-defined]
        num_total = getattr(data, "num_total", max(lines, default=0) + 1)
        if is_cut or any(index not in lines for index in range(num_total)):
            how_many = f": only {len(lines)} samples are in its parts" if self._tells else ""
            rank_zero_warn(
                f"{self.output_path} is not written yet{how_many}. "
                "Run the same command again, without limit_predict_batches, to sample the others."
            )
            return
        ordered = [lines[index] for index in range(num_total)]
        records = [line["record"] for line in ordered if not line["dropped"]]
        metrics = sample_metrics(ordered) if self._tells else {}
        field = sampling_field(self.output_path, cast(Codec, trainer.lightning_module.codec))
        if not records:
            for path in parts:  # without a line in them, they would keep other settings of sampling from being tried
                path.unlink()
            raise UserError(self._none_will_do(metrics, field))
        warning = None
        if self._tells:
            found = cut_off_warning(metrics, trainer.lightning_module, field), missing_warning(metrics)
            warning = "; ".join(filter(None, found)) or None
            if self._started is not None:
                seconds = time.perf_counter() - self._started
                metrics["synthetic/samples_per_second"] = (len(lines) - self._num_resumed) / seconds
        write_json_lines(self.output_path, records)
        told = {**self._made_by, "sha256": self._digest(), "warning": warning}
        told = {name: value for name, value in told.items() if value is not None}
        write_json(f"{self.output_path}.metrics.json", {**metrics, **told})
        for path in parts:
            path.unlink()
        if not self._tells:
            rank_zero_info(f"{self.output_path} is written; it holds text that was not declared public.")
            return
        if warning is not None:
            rank_zero_warn(f"{self.output_path}: {warning}")
        self._log(trainer, metrics, records[: self.log_samples])
        faults, missing = faults_in_words(metrics), metrics["synthetic/num_missing"]
        rate = metrics.get("synthetic/samples_per_second")
        rank_zero_info(
            f"{self.output_path}: wrote {len(records)} samples"
            + (f", {rate:.1f} a second" if rate else "")
            + (f". Thrown away and drawn again: {faults}." if faults else ".")
            + (f" {missing} samples are missing, for which no text would do." if missing else "")
        )

    def _none_will_do(self, metrics: dict[str, float], field: str) -> str:
        which = f"none of the {metrics['synthetic/num_drawn']} texts" if self._tells else "no text"
        faults = f" ({faults_in_words(metrics)})" if metrics else ""
        longer = f"give a larger {field}.max_new_tokens, " if metrics.get("synthetic/dropped/cut off") else ""
        return (
            f"{which} for {self.output_path} is a sample{faults}: {longer}train for longer or at a larger epsilon; "
            f"{field}.redraws=null keeps all texts"
        )

    def _log(self, trainer: pl.Trainer, metrics: dict[str, float], records: Sequence[dict[str, str | None]]) -> None:
        for logger in trainer.loggers:
            with harmless():
                logger.log_metrics(metrics)
                if isinstance(logger, WandbLogger) and records:
                    columns = [name for name in records[0] if any(r[name] is not None for r in records)]
                    data = [[record[name] for name in columns] for record in records]
                    logger.log_table(key="synthetic/samples", columns=columns, data=data)


def _grammar_digests(pl_module: pl.LightningModule) -> list[str] | None:
    """Of the tables under which a model samples; None without any, for the name of a notation is no file."""
    grammar = getattr(getattr(pl_module, "sampling", None), "grammar", None) or []
    names = [grammar] if isinstance(grammar, str) else grammar
    tables = [Path(os.path.expandvars(name)).expanduser() for name in names]
    return [_sha256(table) for table in tables if table.is_file()] or None


def _slots(pl_module: pl.LightningModule) -> str | None:
    """Digest of the table of slots and its values; None where names are as the model writes them."""
    table = pl_module.codec.slot_table if isinstance(pl_module.codec, Codec) else None
    return None if table is None else table.digest_with_values


def _read_metrics(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    told = parse_json(path.read_text(encoding="utf-8"), path, 1, "delete it and the samples beside it to sample anew")
    return told if isinstance(told, dict) else {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_part(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """The first line of a part file, which says what the samples are made by, the others, and their size in bytes.

    A torn last line is left out.

    Raises:
        UserError: A line before the last cannot be read.
    """
    lines: list[dict[str, Any]] = []
    size = 0
    raw_lines = path.read_bytes().splitlines(keepends=True)
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = cast(dict[str, Any], json.loads(raw)) if raw.endswith(b"\n") else None
        except ValueError:
            line = None
        if line is None and number == len(raw_lines):
            break
        if line is None or ("index" in line) is (number == 1):
            raise UserError(
                "not a line that this program wrote; delete the file to resample", about=f"{path}, line {number}"
            )
        lines.append(line)
        size += len(raw)
    return (lines[0] if lines else {}), lines[1:], size

"""Writes sampled texts as JSON lines while they are sampled, and resumes where it stopped."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.data import sized_len

from callbacks.wandb_artifacts import harmless
from datamodules.codec import Codec
from datamodules.data_module import may_be_told
from doppel.errors import UserError
from doppel.files import write_json, write_json_lines
from doppel.lispress import is_valid
from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.fingerprint import keyed_fingerprint
from lightning_modules.sampling import Sample

#: Share of the texts that may be cut off, and of the samples that may be missing, without a warning.
MANY_CUT_OFF = MANY_MISSING = 0.05


class SyntheticWriter(BasePredictionWriter):
    """Writes ``{"utterance": …, "parse": …, "stage": …}`` lines, one per sample, in order of their indices.

    The model's codec says which field a sample is (its target) and which its prompt is (its source); a model prompted
    with labels writes a ``"label"`` besides. While a run lasts, every rank appends to a part file of its own,
    ``OUTPUT.rank{r}.jsonl.part``, which is on disk after every batch. At the end rank 0 merges the parts into
    ``OUTPUT`` in one atomic step, writes ``OUTPUT.metrics.json`` and deletes the parts.

    *Resuming.* A run finds the part files of every rank, drops a torn last line, and puts the indices written so far
    into ``trainer.datamodule.done`` before the prompts are loaded; the number of ranks may change. The random stream of
    a batch is named by the indices in it (see :func:`lightning_modules.sampling.sample_texts`), so neither another
    rank nor a resumed run draws the numbers of a batch that is on disk. Every line in a part carries fingerprints of
    the weights that sampled it, of the prompts that it was asked with, and of the tables of its grammar and its slots;
    parts of others are refused. An ``OUTPUT`` that exists is not sampled again.

    *Dropping.* A sample that the model gave up (:func:`lightning_modules.sampling.draw_samples`) has no line, so that
    ``OUTPUT`` may have fewer lines than samples were asked for.

    ``OUTPUT.metrics.json`` also names the fingerprint of the ``weights``, by which the checkpoint can be told, the
    SHA-256 of what was written, of the file of ``prompts`` where there is one, and of the tables of the ``grammar``,
    and a digest of the table of ``slots``. It says ``prompts_are_declared_public`` of prompts that no step of a run has
    made, and has a ``warning`` if more than a twentieth of the texts were cut off.

    *Privacy.* What is written of public text, or of a release, is public or a release itself, and so are the metrics:
    functions of what the model wrote. A data module that does not say that it reads such text
    (:func:`~datamodules.data_module.may_be_told`), such as the private utterances that a parser annotates, is written
    from in silence: no count and no share of it is computed, logged or said, no sample goes to Weights & Biases, and
    hashes of its content are keyed (:func:`~doppel.privacy.fingerprint.keyed_fingerprint`). The lines themselves are
    then private.

    *Metrics:* ``synthetic/num_samples``, the lines; ``synthetic/num_missing``, what was given up;
    ``synthetic/num_drawn``, all texts, and ``synthetic/dropped/FAULT``, those of them that were no samples;
    ``synthetic/finished``, the share of texts that the model ended itself; ``synthetic/valid_trees``, of well-formed
    ones, where the target is a tree; ``synthetic/slots_said``, the share of the names of the prompts, where these are
    slots, that the samples say, and ``synthetic/slots_invented``, the share of what the samples say that no prompt has;
    and ``synthetic/samples_per_second`` of this run, over all ranks.

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
        self._made_by_on_disk: list[dict[str, Any]] = []
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
        self._is_finished, self._done, self._made_by_on_disk = trainer.strategy.broadcast(found)
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
        """Refuse parts of others; start the clock, and note whether some prompts are to be left out."""
        self._check_parts(trainer, pl_module)
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
            line = {
                "index": sample.index,
                "finished": sample.finished,
                "valid": is_valid(sample.text) if codec.target == "parse" else None,
                "faults": sample.faults,
                "dropped": sample.is_dropped,
                "num_slots": sample.slots,
                **self._made_by,
                "record": {**texts, "stage": self.stage, **sample.fields},
            }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        if self._part is None:
            self._part = self._open_part(trainer.global_rank)
        self._part.write("".join(lines).encode())
        self._part.flush()
        os.fsync(self._part.fileno())

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Merge the parts, once every rank is done.

        This is the only hook that a rank without a batch reaches too, and that a failed run does not reach.
        """
        if stage != "predict":
            return
        self._close_part()
        self._check_parts(trainer, pl_module)
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

    def _check_parts(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fingerprint the weights, which Lightning loads after ``setup``, and more; compare the parts with these.

        Every rank does so by itself, for a rank without a batch reaches ``teardown`` alone.
        """
        if self._is_finished or self._made_by:
            return
        prompts = getattr(trainer.datamodule, "prompts_digest", None)  # type: ignore[attr-defined]
        own: dict[str, Any] = {"weights": weights_fingerprint(pl_module.state_dict()), "prompts": prompts}
        own["grammar"] = _grammar_digests(pl_module)
        own["slots"] = _slots_digest(pl_module)
        for name, value in own.items():
            if any(made_by[name] != value for made_by in self._made_by_on_disk):
                raise UserError(
                    f"the .part files of {self.output_path} hold samples of other {name} than this run's: predict with "
                    f"the {name} that they are of, give another output_path, or delete them to sample all anew"
                )
        self._made_by = own

    def _look(self) -> tuple[bool, set[int], list[dict[str, Any]]]:
        """Whether the output is finished, and otherwise the indices in the parts and what these were made by."""
        if self.output_path.exists():
            for path in self._parts():  # merged, but the run was stopped before it deleted them
                path.unlink()
            return True, set(), []
        done: set[int] = set()
        made_by: list[dict[str, Any]] = []
        for path in self._parts():
            for line in _read_part(path)[0]:
                if line["record"]["stage"] != self.stage:
                    raise UserError(
                        f"{path} holds samples of stage {line['record']['stage']!r}, but this run's is {self.stage!r}: "
                        "give every stage its own output_path, or delete the file"
                    )
                done.add(line["index"])
                other = {name: line.get(name) for name in ("weights", "prompts", "grammar", "slots")}
                made_by += [] if other in made_by else [other]
        return False, done, made_by

    def _parts(self) -> list[Path]:
        pattern = f"{glob.escape(self.output_path.name)}.rank*.jsonl.part"
        return sorted(self.output_path.parent.glob(pattern))

    def _open_part(self, rank: int) -> BinaryIO:
        path = self.output_path.with_name(f"{self.output_path.name}.rank{rank}.jsonl.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        file.truncate(_read_part(path)[1])
        return file

    def _close_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _merge(self, trainer: pl.Trainer, is_cut: bool) -> None:
        parts = self._parts()
        lines = {line["index"]: line for path in parts for line in _read_part(path)[0]}
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
        records = [line["record"] for line in ordered if not line.get("dropped")]
        metrics = self._metrics(ordered) if self._tells else {}
        dropped = {name.rsplit("/", 1)[-1]: int(n) for name, n in metrics.items() if "/dropped/" in name}
        told = ", ".join(f"{n} {_FAULTS.get(fault, fault)}" for fault, n in dropped.items())
        if not records:
            for path in parts:  # without a line in them, they would keep other settings of sampling from being tried
                path.unlink()
            which = f"none of the {metrics['synthetic/num_drawn']} texts" if self._tells else "no text"
            field = self._field_of_sampling(cast(Codec, trainer.lightning_module.codec))
            longer = f"give a larger {field}.max_new_tokens, " if dropped.get("cut off") else ""
            raise UserError(
                f"{which} for {self.output_path} is a sample{f' ({told})' if told else ''}: {longer}"
                f"train for longer or at a larger epsilon; {field}.redraws=null keeps all texts"
            )
        write_json_lines(self.output_path, records)
        warning = None
        if self._tells:
            field = self._field_of_sampling(cast(Codec, trainer.lightning_module.codec))
            found = cut_off_warning(metrics, trainer.lightning_module, field), missing_warning(metrics, told)
            warning = "; ".join(filter(None, found)) or None
        told_too = {} if warning is None else {"warning": warning}
        write_json(f"{self.output_path}.metrics.json", {**metrics, **self._origin(trainer), **told_too})
        for path in parts:
            path.unlink()
        if not self._tells:
            rank_zero_info(f"{self.output_path} is written; it holds text that was not declared public.")
            return
        if warning is not None:
            rank_zero_warn(f"{self.output_path}: {warning}")
        self._log(trainer, metrics, records[: self.log_samples])
        rate, missing = metrics.get("synthetic/samples_per_second"), metrics["synthetic/num_missing"]
        rank_zero_info(
            f"{self.output_path}: wrote {len(records)} samples"
            + (f", {rate:.1f} a second" if rate else "")
            + (f". Thrown away and drawn again: {told}." if told else ".")
            + (f" {missing} samples are missing, for which no text would do." if missing else "")
        )

    def _field_of_sampling(self, codec: Codec) -> str:
        """What the command that was given calls the arguments of the sampling: that of a run, or of a step by hand."""
        if not any((folder / "experiment.yaml").is_file() for folder in self.output_path.resolve().parents[:2]):
            return "--model.init_args.sampling"
        return _field_in_a_run(codec)

    def _origin(self, trainer: pl.Trainer) -> dict[str, Any]:
        """What was written, and what it was made of, by their digests."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        digest = _sha256(self.output_path)
        origin = {
            **self._made_by,
            "sha256": digest if self._tells else keyed_fingerprint(digest),
            "prompts_are_declared_public": not getattr(data, "is_released", False),
        }
        if origin["prompts"] is None or not self._tells:
            del origin["prompts_are_declared_public"]
        return {name: value for name, value in origin.items() if value not in (None, False)}

    def _metrics(self, lines: Sequence[dict[str, Any]]) -> dict[str, float]:
        faults = Counter(fault for line in lines for fault in line.get("faults", ()))
        num_missing = sum(line.get("dropped", False) for line in lines)
        num_drawn = len(lines) - num_missing + faults.total()
        kept = [line for line in lines if not line.get("dropped")]
        metrics: dict[str, float] = {
            "synthetic/num_samples": len(kept),
            "synthetic/num_missing": num_missing,
            "synthetic/num_drawn": num_drawn,
            **{f"synthetic/dropped/{fault}": number for fault, number in sorted(faults.items())},
            "synthetic/finished": (sum(line["finished"] for line in kept) + faults.total() - faults["cut off"])
            / num_drawn,
        }
        if any(line["valid"] is not None for line in lines):
            metrics["synthetic/valid_trees"] = sum(bool(line["valid"]) for line in kept) / num_drawn
        num_given, num_said, num_own = (sum(line.get("num_slots", (0, 0, 0))[i] for line in kept) for i in range(3))
        if num_given:
            metrics["synthetic/slots_said"] = num_said / num_given
            metrics["synthetic/slots_invented"] = num_own / (num_said + num_own) if num_said + num_own else 0.0
        if self._started is not None:
            seconds = time.perf_counter() - self._started
            metrics["synthetic/samples_per_second"] = (len(lines) - self._num_resumed) / seconds
        return metrics

    def _log(self, trainer: pl.Trainer, metrics: dict[str, float], records: Sequence[dict[str, str | None]]) -> None:
        for logger in trainer.loggers:
            with harmless():
                logger.log_metrics(metrics)
                if isinstance(logger, WandbLogger) and records:
                    columns = [name for name in records[0] if any(r[name] is not None for r in records)]
                    data = [[record[name] for name in columns] for record in records]
                    logger.log_table(key="synthetic/samples", columns=columns, data=data)


def _field_in_a_run(codec: Codec) -> str:
    return "stages.parse_tree.sampling" if codec.target == "parse" else "sampling"


def missing_warning(metrics: Mapping[str, float], told: str) -> str | None:
    """That more than a twentieth of the samples are missing, and why; None where they are not.

    *Privacy.* A function of what a released model wrote.

    Args:
        metrics: Of a file of samples.
        told: What its texts were, instead of samples.
    """
    missing = metrics["synthetic/num_missing"]
    num = metrics["synthetic/num_samples"] + missing
    if missing <= MANY_MISSING * num + 1e-9:
        return None
    way = "train for longer or at a larger epsilon"
    if (
        2 * metrics.get("synthetic/dropped/broken", 0)
        > metrics["synthetic/num_drawn"] - metrics["synthetic/num_samples"]
    ):
        way = "the base model knows these characters as bytes alone: take a model.base_model of this language"
    return f"{missing:,} of {num:,} samples are missing, for no text would do ({told}): {way}"


#: How a fault is told of, where its name alone would not say it.
_FAULTS = {"broken": "with broken characters", "a tree": "with code in them", "malformed": "not well-formed"}


def cut_off_warning(metrics: Mapping[str, float], pl_module: pl.LightningModule, field: str = "") -> str | None:
    """What to set where more than a twentieth of the texts were cut off; None where they were not.

    *Privacy.* A function of what a released model wrote.

    Args:
        metrics: Of a file of samples.
        pl_module: The model that wrote them.
        field: What the arguments of its sampling are called; empty: as in a run.
    """
    share = 1 - metrics["synthetic/finished"]
    if share <= MANY_CUT_OFF + 1e-9:
        return None
    cut = f"{share:.0%} of {metrics['synthetic/num_drawn']:,} texts were cut off"
    wanted = getattr(getattr(pl_module, "sampling", None), "max_new_tokens", None)
    config = getattr(getattr(pl_module, "model", None), "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    codec = cast(Codec, pl_module.codec)
    field = f"{field or _field_in_a_run(codec)}.max_new_tokens"
    if wanted is None or (positions is not None and wanted >= positions - 1):
        return (
            f"{cut} at the last position of the model{f', {positions}' if positions else ''}, so no larger {field} "
            "helps: take a model.base_model with more positions, or train for longer"
        )
    tried = 2 * wanted if positions is None else min(2 * wanted, positions)
    return f"{cut} at {wanted} tokens, so long ones are lacking: set {field}={tried}"


def _grammar_digests(pl_module: pl.LightningModule) -> list[str] | None:
    """Of the tables under which a model samples; None without any, for the name of a notation is no file."""
    grammar = getattr(getattr(pl_module, "sampling", None), "grammar", None) or []
    names = [grammar] if isinstance(grammar, str) else grammar
    tables = [Path(os.path.expandvars(name)).expanduser() for name in names]
    return [_sha256(table) for table in tables if table.is_file()] or None


def _slots_digest(pl_module: pl.LightningModule) -> str | None:
    """Of the table of slots and its values; None where names are as the model writes them."""
    table = pl_module.codec.slot_table if isinstance(pl_module.codec, Codec) else None
    return None if table is None else table.digest_with_values


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_part(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a part file and their size in bytes, without a torn last line.

    Raises:
        ValueError: A line before the last cannot be read.
    """
    lines: list[dict[str, Any]] = []
    size = 0
    raw_lines = path.read_bytes().splitlines(keepends=True)
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = cast(dict[str, Any], json.loads(raw)) if raw.endswith(b"\n") else None
        except ValueError:
            line = None
        if line is None:
            if number == len(raw_lines):
                break
            raise UserError(
                "not a line that this program wrote; delete the file to resample", about=f"{path}, line {number}"
            )
        lines.append(line)
        size += len(raw)
    return lines, size

"""The base class of modules that train by logical batches, privately or not."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Parameter
from torch.optim.lr_scheduler import LRScheduler
from torch.profiler import record_function

from datamodules.batches.batch import LogicalBatch
from datamodules.private_data import reads_public
from doppel.errors import UserError
from doppel.gradients import GradientReducer
from doppel.privacy.checkpoint import KEY, privacy_state, weights_fingerprint
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.graphs import CudaGraphs, CudaRecorder, MicroBatchGraphs, Recorder, why_not
from lightning_modules.training.step_policy import PlainStep, StepPolicy

#: Code between the call of a figure's logging and the module.
_LOGGING = (__name__, "callbacks.closed_loggers", "lightning.pytorch.core.module")


class LogicalBatchModule(LightningModule):
    """A module of any kind whose optimiser step takes one logical batch: what ``DifferentialPrivacy`` makes private.

    A subclass gives :meth:`losses`, one for each row of a micro-batch, and ``configure_optimizers`` with one optimiser
    and, if it likes, one scheduler, stepped once per logical batch; ``docs/own-model.md`` has a whole program.

    Formal guarantees:
        A subclass keeps them if the loss of a row depends on that row and on public numbers alone (no mean over the
        batch, no batch statistics); rows keep their places, so that row i of what a trained layer takes and gives is
        row i of the batch; and every trainable parameter belongs to a layer that the clipper knows, which refuses
        others by name. *Figures* are closed by default: of a private run :meth:`log`, ``log_dict``, :meth:`print` and
        the trainer's loggers keep in the process whatever is not declared public, by :meth:`log_metric` or by all
        data that are read, so that no callback can stop, save or choose by it.
    """

    #: Why this kind of model cannot be trained privately; None if it can.
    not_private_because: ClassVar[str | None] = None
    #: Whether CUDA graphs compute its micro-batches; ``auto`` asks for losses without a choice on the host.
    cuda_graphs: CudaGraphs = "off"
    #: Whether it trains LoRA weights of float32 alone, so that ``bf16-true`` is for those that are frozen.
    trains_lora_alone: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        #: How a step is taken; ``DifferentialPrivacy`` puts its own here.
        self.step_policy: StepPolicy = PlainStep()
        #: What its weights come from: a record for each model before it, with ``path``, ``private`` (which ledger paid
        #: for it, None without privacy) and ``is_public`` (whether its data were declared public, None where it does
        #: not say); checkpoints keep it.
        self.origins: list[dict[str, Any]] = []
        #: Names of the figures that were logged.
        self.let_out: set[str] = set()
        self._closed_at: set[str] = set()
        self._reducer: GradientReducer | None = None
        self._graphs: MicroBatchGraphs | None = None

    def losses(self, batch: Any) -> Tensor:
        """Return the loss of each row of a micro-batch, [num_units * rows_per_unit], unit by unit."""
        raise NotImplementedError(f"{type(self).__name__} does not say the losses of a micro-batch: define losses()")

    def configure_optimizers(self) -> Any:
        """Build one optimiser, and a scheduler if there is one."""
        raise UserError(
            "names no optimiser: define configure_optimizers(self), such as `return torch.optim.Adam("
            "self.parameters(), lr=0.001)`",
            about=type(self).__name__,
        )

    def row_losses(self, batch: Any) -> Tensor:
        """Return :meth:`losses`; refuse them if they are not one for each row.

        A scalar is a mean or a sum over rows: the clipper would take one number for the loss of every row, and a mean
        over the micro-batch lets one unit more change what the others give. Only the shape is looked at, and no number
        of rows is told: it is private.

        Raises:
            UserError: They are not.
        """
        with nullcontext() if type(self.step_policy) is PlainStep else self._quoting_nothing():
            losses = self.losses(batch)
        num_rows = batch.num_units * batch.rows_per_unit
        if isinstance(losses, Tensor) and losses.shape == (num_rows,):
            return losses
        found = f"a {type(losses).__name__}"
        if isinstance(losses, Tensor):
            found = {0: "a scalar", 1: "another number of losses than rows"}.get(
                losses.dim(), f"a tensor of {losses.dim()} dimensions"
            )
        raise UserError(
            f"losses() gives {found}, but must give one loss for each row of the micro-batch, of shape [rows]: leave "
            "out the mean or sum over rows (reduction='none'), and sum over the positions of a row",
            about=type(self).__name__,
        )

    @contextmanager
    def _quoting_nothing(self) -> Iterator[None]:
        """Tell by type and place what losses() of one's own raises on a private row: the message may quote it."""
        try:
            yield
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            frames, own = traceback.extract_tb(error.__traceback__), type(self).losses.__code__.co_filename
            if isinstance(error, RuntimeError) and not (frames[-1].line or "").startswith("raise"):
                raise  # of an operation of PyTorch, which knows shapes alone; the clipper reads it
            at = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
            raise UserError(
                f"losses() raises {type(error).__name__} at {Path(at.filename).name}:{at.lineno}, whose message is not "
                "shown, for it may quote a row: try losses() on a made-up one",
                about=type(self).__name__,
            ) from None

    def weighted_losses(self, batch: Any) -> Tensor:
        """Return :meth:`row_losses` times the batch's ``weights``, where it has any.

        Formal guarantees:
            Constant rows that fill up a fixed shape have the weight 0: whatever a module makes of them, the gradient of
            such a row is 0, and how many there are moves nothing.
        """
        losses, weights = self.row_losses(batch), getattr(batch, "weights", None)
        return losses if weights is None else losses * weights

    def probe(self) -> tuple[Any, ...] | None:
        """Return micro-batches that say nothing of anybody, by which a private run checks that rows are independent.

        Returns:
            A short made-up row alone, and the same row after a longer one, both on the module's device and as a
            training would make them; the two rows differ in whatever the model reads. The check repeats, mixes and cuts
            them into batches of up to 32 rows, so that some 16 positions do. Up to two more batches hold the short row
            after a row of another length, for the last such as long as rows come: its loss is compared beside both, its
            gradient beside the first. None where there is no such check, which the run and its ledger say.
        """
        return None

    def canary(self, number: int) -> Any:
        """Return a made-up row, as the dataset gives one, for an audit to hide; None where nothing is audited.

        Rows of other numbers differ, and the model can learn each by heart: random words, an odd label.
        """
        return None

    def on_fit_start(self) -> None:
        """Drop gradient buffers of an earlier fit: parameters may be elsewhere in this one. Begin its CUDA graphs."""
        self._reducer, self._graphs = None, None
        recorder = self.recorder()
        if recorder is not None:
            self._graphs = MicroBatchGraphs(self, recorder)
        self._say_if_not_private("this training learns, and what is sampled from it")

    def recorder(self) -> Recorder | None:
        """Return what records micro-batches; None where the host computes each, and say why where it might not."""
        if self.cuda_graphs == "off" or self.device.type != "cuda":
            return None
        reason = why_not(self)
        if reason is not None:
            rank_zero_info(f"model.cuda_graphs: steps go without CUDA graphs, for {reason}")
        return None if reason is not None else CudaRecorder(self.device)

    def left_out(self) -> frozenset[str]:
        """Return the entries of ``state_dict`` that no checkpoint holds, for they are not trained and lie elsewhere."""
        return frozenset()

    def fingerprints(self) -> Mapping[str, str]:
        """Return the SHA-256 of entries of ``state_dict``, as they are now, for which it need not be computed again."""
        return {}

    def weights_digest(self) -> str:
        """Return the SHA-256 of all weights, by which samples know what made them."""
        return weights_fingerprint(self.state_dict())

    @property
    def is_private_training(self) -> bool:
        """Whether the trainer has the callback that makes its training private."""
        callbacks = [] if self._trainer is None else self._trainer.callbacks  # type: ignore[attr-defined]
        return any(callback.state_key == KEY for callback in callbacks)

    def on_fit_end(self) -> None:
        """Free the CUDA graphs; say again, for whoever reads the end of a log, if it was not private."""
        self._graphs = None
        self._say_if_not_private(f"these {self.trainer.global_step} steps have learnt")

    def _say_if_not_private(self, what: str) -> None:
        if type(self.step_policy) is PlainStep:
            is_public = getattr(self.trainer.datamodule, "is_public", False)  # type: ignore[attr-defined]
            data = "the data are declared public" if is_public else "whoever is in the data is not protected"
            rank_zero_info(f"NOT PRIVATE: no ε holds for what {what}; {data}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep whether the data were declared public, for who starts a private training from these weights."""
        data = None if self._trainer is None else self._trainer.datamodule  # type: ignore[attr-defined]
        checkpoint["data_is_public"] = getattr(data, "is_public", None)
        checkpoint["origins"] = self.origins

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on without privacy from a private training: no ε would cover the weights any more.

        What goes on from data that were not public stays so, whatever it learns next.

        Raises:
            UserError: It would.
        """
        if self._trainer is None or self._trainer.state.fn != TrainerFn.FITTING:
            return
        self.origins = list(checkpoint.get("origins", self.origins))
        if privacy_state(checkpoint) is None and not checkpoint.get("data_is_public"):
            before = {"path": str(self._trainer.ckpt_path), "private": None}  # type: ignore[attr-defined]
            before["is_public"] = checkpoint.get("data_is_public")
            self.origins += [] if before in self.origins else [before]
        if privacy_state(checkpoint) is not None and not self.is_private_training:
            raise UserError(
                "the checkpoint is of a private training, which may not go on without privacy: restore the key "
                "`privacy` of its config.yaml; for public data, start another training with the checkpoint as the "
                "model's init_weights"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights; those of a checkpoint that a Trainer goes on from are told in one line where they do not fit.

        Raises:
            UserError: The checkpoint holds other weights than the model has.
        """
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            path = None if self._trainer is None else self._trainer.ckpt_path  # type: ignore[attr-defined]
            faults = str(error).splitlines()[1:]
            if path is None or not faults:
                raise
            raise UserError(
                f"the checkpoint {path} is of another model ({' '.join(faults[0].split()).rstrip('.')}): give the "
                "model the arguments that it was trained with, which are in the config.yaml of its folder, or train "
                "anew in another --run_dir"
            ) from error

    def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        """Take one optimiser step on one logical batch; an empty batch steps too."""
        reducer = self.begin_step(self.parameters())
        total = torch.zeros((), device=self.device)
        if self._graphs is not None:
            self._graphs.begin_step()
        for number, micro_batch in enumerate(batch.micro_batches, start=1):
            if self._graphs is not None:
                total += self._graphs.run(micro_batch, self._compute)
            else:
                total += self._compute(micro_batch, reducer if number == len(batch.micro_batches) else None)
        self.end_step(reducer, batch.expected_num_units)
        num_units = max(batch.num_units, 1)
        self.log_metric("train/loss", total / num_units, batch.is_public, batch_size=num_units, prog_bar=True)

    def _compute(self, micro_batch: Any, reducer: GradientReducer | None = None) -> Tensor:
        """Add what a micro-batch gives to the gradients, and return the sum of its losses."""
        with self.step_policy.micro_batch(micro_batch, reducer):
            with record_function("doppel/forward"):
                losses = self.weighted_losses(micro_batch) / micro_batch.rows_per_unit
                loss = losses.sum()
            with record_function("doppel/backward"):
                self.manual_backward(loss)
        return losses.detach().sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the mean loss of the rows, ``val/loss``, where the micro-batch's ``is_public`` permits."""
        self._log_mean_loss("val", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the mean loss of the rows, ``test/loss``, likewise."""
        self._log_mean_loss("test", batch)

    def _log_mean_loss(self, name: str, batch: Any) -> None:
        losses = self.row_losses(batch)
        is_public = bool(getattr(batch, "is_public", False))
        self.log_metric(f"{name}/loss", losses.mean(), is_public, batch_size=len(losses), sync_dist=True)

    def begin_step(self, parameters: Iterable[Parameter]) -> GradientReducer:
        """Set the gradients to zero, and seed dropout by the step: a resumed run draws what an undisturbed one draws.

        Args:
            parameters: The parameters, in one order on all ranks; those that are trained are zeroed.
        """
        self.step_policy.seed_dropout(self.trainer.global_step, self.global_rank)
        if self._reducer is None:
            self._reducer = GradientReducer(p for p in parameters if p.requires_grad)
            if (
                self.trainer.scaler is not None
            ):  # it steps only after it has scaled a loss; the first batch may be empty
                self.trainer.scaler.scale(torch.zeros((), device=self.device))
        self._reducer.zero()
        return self._reducer

    def end_step(self, reducer: GradientReducer, expected_num_units: float) -> None:
        """Reduce the gradients as the policy says; step the optimiser and the scheduler.

        Args:
            reducer: What :meth:`begin_step` returned.
            expected_num_units: Expected size of the logical batch over all ranks.
        """
        self.step_policy.finish(reducer, expected_num_units, self.trainer.global_step)
        optimizer = self.optimizers()
        if isinstance(optimizer, list):
            raise UserError(
                f"configure_optimizers gives {len(optimizer) or 'no'} optimisers: a logical batch is one step of one; "
                "groups of parameters may have rates of their own"
            )
        optimizer.step()
        scheduler = self.lr_schedulers()
        if scheduler is not None:
            if not isinstance(scheduler, LRScheduler):
                raise UserError("configure_optimizers gives no schedule that counts steps: give one, or none")
            scheduler.step()
        self.log_metric("train/learning_rate", optimizer.param_groups[0]["lr"], is_public=True)

    def log_metric(self, name: str, value: Any, is_public: bool, **kwargs: Any) -> None:
        """Log a number if the policy lets it out, under the name that the policy gives it.

        Args:
            name: Its name.
            value: Its value.
            is_public: Whether it depends on public data alone.
            kwargs: As of ``LightningModule.log``.
        """
        public_name = self.step_policy.metric_name(name, is_public)
        if public_name is not None:
            self.let_out.add(public_name)
            super().log(public_name, value, **kwargs)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log as Lightning does, and so for ``log_dict`` and callbacks; of a private run nothing, for what does not say
        that it is public may follow private rows.

        Raises:
            PrivateTrainingError: A callback of a private training waits for the figure.
        """
        public_name = self.closed_name(name, "self.log")
        if public_name != name:
            self._refuse_to_monitor(name)
        if public_name is not None:
            self.let_out.add(public_name)
            super().log(public_name, value, *args, **kwargs)

    def _refuse_to_monitor(self, name: str) -> None:
        """Refuse a training whose callback waits for what was kept in."""
        is_fit = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        for callback in self.trainer.callbacks if is_fit else ():  # type: ignore[attr-defined]
            if getattr(callback, "monitor", None) == name:
                raise PrivateTrainingError(
                    f"{type(callback).__name__} monitors {name!r}, which self.log keeps in the process of a private "
                    f"run: where it follows public rows alone, call self.log_metric({name!r}, value, "
                    "is_public=batch.is_public)",
                    about=type(self).__name__,
                )

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on rank 0; of a private run nothing, or what is asked for, named ``private/print``."""
        name = self.closed_name("print", "self.print")
        if name is not None:
            super().print(*([] if name == "print" else [f"{name}:"]), *args, **kwargs)

    def closed_name(self, name: str, call: str) -> str | None:
        """Return the name under which a figure leaves that does not say whether it is public; None if it stays.

        Args:
            name: The figure's.
            call: What was called, for the warning that it stays.
        """
        trainer: Any = self._trainer
        is_public = trainer is not None and reads_public(trainer.datamodule, getattr(trainer.state.fn, "value", ""))
        public_name = self.step_policy.metric_name(name, is_public)
        if public_name is None:
            self.say_closed(call)
        return public_name

    def say_closed(self, call: str) -> None:
        """Warn, once for a line of code, of a call that tells nothing; its words may be private, so it is named by its
        place."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _LOGGING:
            frame = frame.f_back
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if place not in self._closed_at:
            self._closed_at.add(place)
            rank_zero_warn(
                f"{place}: {call} tells nothing of a private run, for nothing says that it is public: log a figure of "
                "public rows by self.log_metric(name, value, is_public=batch.is_public); "
                "privacy.log_private_diagnostics logs figures as private/…, which no ε covers"
            )

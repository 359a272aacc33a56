"""The one callback that makes a training run differentially private."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.utils.hooks import RemovableHandle

from callbacks.bound_checkpoints import BoundCheckpoints
from callbacks.checkpoint_space import CheckpointSpace
from callbacks.closed_loggers import close_figures, open_loggers, opened
from callbacks.cut_epochs import go_on_within
from callbacks.requirements import monitors, refusals, refusals_of_bands, refuse_optimizers, refuse_other_sampler
from callbacks.row_independence import check_row_independence
from callbacks.untrained_state import UntrainedState
from datamodules.batches.batch import LogicalBatch
from datamodules.private_data import PrivateData, reads_public
from doppel.console.say import confirm
from doppel.errors import UserError
from doppel.privacy.checkpoint import privacy_state
from doppel.privacy.ledger import Ledger
from doppel.privacy.optimizer import DPAdam
from doppel.privacy.private_step import PrivateStep, PrivateTrainingError, refuse_rounded_weights
from doppel.privacy.session import PrivateSession, checkpoint_every, last_step, plan_stage
from doppel.privacy.spec import MAX_GRAD_NORM, DPPlan, PrivacyArguments
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.loss_scale import StaticLossScale
from lightning_modules.training.step_policy import PlainStep

__all__ = ["DifferentialPrivacy", "PrivateTrainingError"]


class DifferentialPrivacy(Callback):
    """Trains a :class:`LogicalBatchModule` on :class:`PrivateData` with DP-SGD (Abadi et al., 2016).

    Without this callback the same configuration is the non-private run.

    Formal guarantees:
        Neighbouring data sets differ by one *unit*. The data module draws each unit independently with rate q = B/N
        (Poisson). :class:`~doppel.privacy.private_step.PrivateStep`, which this callback puts into the module, clips
        each sampled unit to norm C, adds noise σC once to the sum over ranks, and divides by the public B. Every step
        is therefore one Poisson-subsampled Gaussian mechanism (q, σ), and is written to the ledger *before* its batch
        is computed, an empty one too, so ε of the ledger is never below what was released. Steps that a crash rolled
        back stay spent. With ``privacy.bands`` b > 1 a fit is a segment of correlated noise
        (:class:`~doppel.privacy.banded_noise.BandedNoise`), and a line in the ledger pays for b steps, from its first
        one on. The digest of every checkpoint is in the ledger before the file has its name, so that nobody vouches
        for another one under it.

    What would break this is refused by name: at start, what :mod:`~callbacks.requirements` lists, layers without a
    clipping rule, a checkpoint that the ledger has not, and rows that change what others give
    (:func:`~callbacks.row_independence.check_row_independence`); when it comes, an optimiser step without noise or
    without a line in the ledger, and a checkpoint that would tell more than trained weights
    (:class:`~callbacks.untrained_state.UntrainedState`).

    Precision ``16-mixed``, for devices without bfloat16, trains under a constant loss scale, for Lightning's gradient
    scaler skips steps depending on the data (see :class:`StaticLossScale`). A unit whose gradient is not finite
    contributes zero. Nothing public tells how many did: if a run does not learn, look at ``private/num_nonfinite``
    behind closed doors, and lower the scale.

    Args:
        privacy: What the user decides: the key ``privacy`` of a configuration.
    """

    def __init__(self, privacy: PrivacyArguments) -> None:
        self.privacy = privacy
        self.spec: DPPlan | None = None
        self.session: PrivateSession | None = None  # of rank 0 alone
        self.spent: float | None = None  # ε of the ledger, as of the last twentieth of the steps
        self.step: PrivateStep | None = None
        self._loss_scale = 1.0
        self._planned_steps = 0  # of this stage
        self._num_steps = 0  # that the weights have
        self._first_step = 0  # of this fit
        self._last_step = 0  # after which the training ends
        self._paid: int | None = None  # the step whose line is in the ledger
        self._restored: dict[str, Any] | None = None
        self._loops: dict[str, Any] | None = None  # of the checkpoint, which Lightning has yet to read
        self._untrained: UntrainedState | None = None
        self._checkpoints: BoundCheckpoints | None = None
        self._hooks: list[RemovableHandle] = []

    @property
    def saves_every(self) -> int:
        """Steps of this training after which its next checkpoint is kept, at the latest: whole rounds."""
        return checkpoint_every(self._last_step, 1 if self.spec is None else self.spec.bands)

    def left_of_round(self, step: int) -> int:
        """Return how many steps a round lacks after ``step`` steps: 0 at its end, and without bands."""
        return 0 if self.spec is None else (self._first_step - step) % self.spec.bands

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what would break the guarantee, before anything is computed; replace a gradient scaler.

        From here on figures are closed that are not declared public: ``validate`` and ``test``, which spend nothing,
        tell nothing of other files either.
        """
        self._paid = self._restored = self._loops = None  # a checkpoint is read after this
        reasons = refusals(trainer, pl_module, self.privacy.log_private_diagnostics) if stage == "fit" else []
        if reasons:
            raise PrivateTrainingError("a private run refuses this configuration: " + "; ".join(reasons))
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if stage != "predict":
            close_figures(trainer, pl_module, data, stage, self.privacy.log_private_diagnostics)
        if stage != "fit":
            if trainer.is_global_zero and stage != "predict" and not reads_public(data, stage):
                self._note_diagnostics(stage)
            return
        if any(monitors(callback) for callback in trainer.callbacks):  # type: ignore[attr-defined]
            # What logs a monitored figure is tried before a step is paid.
            trainer.num_sanity_val_steps = max(trainer.num_sanity_val_steps, 1)
        precision = trainer.precision_plugin
        if isinstance(precision, MixedPrecision) and precision.precision == "16-mixed":
            self._loss_scale = self.privacy.fp16_loss_scale
            trainer.strategy.precision_plugin = StaticLossScale(self._loss_scale, precision.device)
        self._checkpoints = BoundCheckpoints(trainer.strategy.checkpoint_io, self._release)
        trainer.strategy.checkpoint_io = self._checkpoints

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Calibrate σ, open the ledger, make the module's step private."""
        assert isinstance(pl_module, LogicalBatchModule) and trainer.max_epochs is not None
        refuse_rounded_weights(pl_module.named_parameters())
        data = cast(PrivateData, trainer.datamodule)  # type: ignore[attr-defined]
        privacy, before = self.privacy, self._restored
        self.spec, planned_steps = plan_stage(privacy, data, trainer.max_epochs, before)
        self._planned_steps = planned_steps
        wanted_steps = planned_steps if trainer.max_steps < 0 else min(trainer.max_steps, planned_steps)
        self._num_steps = 0 if before is None else before["num_steps"]
        if self._loops is not None:
            steps_per_epoch, limit = -(-planned_steps // trainer.max_epochs), trainer.limit_train_batches
            steps_per_epoch = min(steps_per_epoch, limit if isinstance(limit, int) else int(limit * steps_per_epoch))
            go_on_within(self._loops, self._num_steps, max(steps_per_epoch, 1))
            self._loops = None
        if privacy.bands != 1 and (reasons := refusals_of_bands(trainer, trainer.optimizers)):
            raise PrivateTrainingError("a private run refuses this configuration: " + "; ".join(reasons))
        if hasattr(data, "bands"):
            data.bands = self.spec.bands
        affordable = 0
        if trainer.is_global_zero:
            session = PrivateSession(privacy, self.spec)
            if before is not None:
                session.refuse_unpaid(before, Path(str(trainer.ckpt_path)))
            affordable = session.open(data, planned_steps, pl_module.origins, before is not None)
            if not isinstance(trainer.profiler, PassThroughProfiler):  # type: ignore[attr-defined]
                text = (
                    "what trainer.profiler has written, times and numbers of calls, follows sampled rows: not covered"
                )
                session.ledger.caveat(privacy.scope, text, voids=False)
            self.session, self.spec = session, session.plan
        self.spec = trainer.strategy.broadcast(self.spec)  # every rank's own would differ where processors do
        self._last_step = last_step(privacy, wanted_steps, self._num_steps, trainer.strategy.broadcast(affordable))
        if self._num_steps < self._last_step < wanted_steps:
            question = f"Go on with {self._last_step} of {wanted_steps} steps, all that the budget affords?"
            if not trainer.strategy.broadcast(confirm(question) if trainer.is_global_zero else True):
                raise UserError("nothing was started: the checkpoint that is there stays, and so does what was spent")
        self.step = pl_module.step_policy = PrivateStep(
            pl_module,
            self.spec,
            trainer.strategy.broadcast,
            self._loss_scale,
            privacy.log_private_diagnostics,
            privacy.seed,
            self._last_step,
        )
        self._untrained = UntrainedState(pl_module)
        self._say(wanted_steps)
        if self.spec.max_grad_norm == MAX_GRAD_NORM and not hasattr(
            pl_module, "text_format"
        ):  # of a module of one's own
            rank_zero_info(
                f"  C is {MAX_GRAD_NORM:g}, the default, which suits language models: for a classifier take "
                "--privacy.max_grad_norm 1"
            )
        for logger in map(opened, trainer.loggers):
            logger.log_hyperparams({"privacy": {**self.spec.to_dict(), "scope": privacy.scope}})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Test made-up rows; set the last step, for Lightning has restored ``max_steps`` by now.

        From a checkpoint of an epoch's end it would count that epoch again, and end one epoch early.
        """
        assert isinstance(pl_module, LogicalBatchModule)
        assert self._untrained is not None and self._checkpoints is not None
        trainer.fit_loop.epoch_loop.max_steps = self._last_step
        self._first_step = trainer.global_step
        refuse_optimizers(trainer)
        assert self.spec is not None
        refuse_other_sampler(trainer.datamodule, self.spec.bands)  # type: ignore[attr-defined]
        for optimizer in trainer.optimizers:
            self._untrained.refuse_strangers(optimizer)
            # PyTorch's hook: that of Lightning is passed by where a training_step calls the optimiser itself.
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self._refuse_step(trainer, pl_module)))
            if isinstance(optimizer, DPAdam):
                optimizer.bind(trainer.strategy.broadcast(self.spec.noise_scale), self._planned_steps)
        unchecked = self._check(pl_module)
        if unchecked is not None:  # the ledger, and so every card, names it
            text = f"that the loss of a row depends on that row alone was not checked: {unchecked}"
            rank_zero_info(text)
            if self.session is not None:
                self.session.ledger.caveat(self.privacy.scope, text, voids=False)
        self._untrained.refuse_change("a made-up row of its probe()", trained_too=True)
        self._checkpoints.space = CheckpointSpace.of(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: LogicalBatch, batch_idx: int
    ) -> None:
        """Write the step to the ledger before it runs; the ledger refuses one that the budget does not afford. None is
        paid whose checkpoint has no room on the disk.
        """
        if self._checkpoints is not None:
            self._checkpoints.hold()
        if self.session is not None:
            self.session.spend(trainer.global_step, self._first_step)
        self._paid = trainer.global_step

    def _refuse_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse a step without noise, or one more than the ledger was told of, or a first one that changed the module.

        The first two come of a module whose own ``training_step`` leaves out the policy, or takes several steps for a
        batch.
        """
        if self.step is None or self.step.finished != trainer.global_step:
            what = "an optimiser step on gradients without noise"
        elif self._paid != trainer.global_step:
            what = "a second optimiser step for one logical batch"
        else:
            if self._untrained is not None and trainer.global_step == self._first_step:
                self._untrained.refuse_change("a step", trained_too=True)
            return
        raise PrivateTrainingError(
            f"{type(pl_module).__name__} takes {what}: let its training_step be that of LogicalBatchModule, or call "
            "begin_step and end_step once for each logical batch"
        )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: STEP_OUTPUT,
        batch: LogicalBatch,
        batch_idx: int,
    ) -> None:
        """Log what is spent; between two logs, tell it to the bar."""
        self._num_steps = trainer.global_step
        if self.session is None:
            return
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step >= self._last_step or trainer.global_step % every == 0:
            metrics = self.session.metrics()
            self.spent = metrics["dp/epsilon"]
            if self.privacy.log_private_diagnostics and self.step is not None:
                metrics["private/num_nonfinite"] = float(self.step.clipper.num_nonfinite)
            for logger in map(opened, trainer.loggers):
                logger.log_metrics(metrics, step=trainer.global_step)
        elif trainer.global_step % math.ceil(self._last_step / 20) == 0:
            self.spent = self.session.epsilon

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say what holds now, of weights that may be taken from here without a checkpoint."""
        if self._untrained is not None:
            self._untrained.refuse_change("the training", is_end=True)
        self._say()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Say what holds now: what was released before stays spent. Lightning tears no callback down after this."""
        self._say()
        self._let_go()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the module its ordinary step back, and the trainer its loggers."""
        open_loggers(trainer)
        self._let_go()
        self.step = self._untrained = None
        if isinstance(pl_module, LogicalBatchModule):
            pl_module.step_policy = PlainStep()
        data: Any = getattr(trainer, "datamodule", None)
        if hasattr(data, "bands"):  # a later fit may have none
            data.bands = 1

    def _let_go(self) -> None:
        """Take the hooks off optimiser and parameters, which a later training may have, too."""
        while self._hooks:
            self._hooks.pop().remove()
        if self.step is not None:
            self.step.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the plan of the weights' training, its steps, and the mechanism that paid for them."""
        return {
            "spec": None if self.spec is None else self.spec.to_dict(),
            "scope": self.privacy.scope,
            "mechanism_id": "" if self.session is None else self.session.mechanism_id,
            "num_steps": self._num_steps,
        }

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to write what a private step has changed without noise."""
        if self._untrained is not None:
            self._untrained.refuse_change("the training", checkpoint["state_dict"])

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to go on from weights that were trained without a guarantee: no ledger has paid for them."""
        if trainer.state.fn == TrainerFn.FITTING and privacy_state(checkpoint) is None:
            raise PrivateTrainingError(
                "the checkpoint is of a training without privacy, whose weights no ε covers: leave out ckpt_path; "
                "weights of public data are given as the model's init_weights"
            )
        if trainer.state.fn == TrainerFn.FITTING:
            self._loops = (checkpoint.get("loops") or {}).get("fit_loop")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the checkpoint's plan, to compare it with this run's."""
        self._restored = state_dict

    def _release(self, checkpoint: dict[str, Any], sha256: str) -> None:
        """Write a checkpoint to the ledger; not one without a paid step."""
        state = privacy_state(checkpoint)
        if state is None:  # such as the bare weights that a spawned rank 0 hands to the process that started it
            return
        if self.session is not None and state["num_steps"] > 0:
            steps = self.session.plan.rounds(state["num_steps"])
            self.session.ledger.release(state["mechanism_id"], sha256=sha256, steps=steps)

    def _check(self, pl_module: LogicalBatchModule) -> str | None:
        """Try made-up rows; where they fail weights that steps were paid for, every card tells it."""
        try:
            return check_row_independence(pl_module)
        except PrivateTrainingError:
            if self.session is not None and self._num_steps:
                text = (
                    f"after {self._num_steps} steps a made-up row changed what another one gives: unless the model's "
                    "code or its precision was changed since, C did not bound those steps, and no epsilon holds"
                )
                self.session.ledger.caveat(self.privacy.scope, text, voids=False)
            raise

    def _note_diagnostics(self, stage: str) -> None:
        """Tell the ledger, where there is one, that figures of a private file leave beside what it paid for."""
        path = Path(self.privacy.ledger_path or "")
        if self.privacy.log_private_diagnostics and path.is_file():
            text = f"the figures named private/… that {TrainerFn(stage).value} has logged are not covered"
            Ledger(path).caveat(self.privacy.scope, text, voids=False)

    def _say(self, wanted_steps: int | None = None) -> None:
        """The guarantee in two lines, at the start and the end of every training; rank 0 has the ledger."""
        for line in [] if self.session is None else self.session.statement(wanted_steps):
            rank_zero_info(line)

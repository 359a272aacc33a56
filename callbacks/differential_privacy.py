"""The one callback that makes a training run differentially private."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch.optim import Optimizer

from callbacks.bound_checkpoints import BoundCheckpoints
from callbacks.private_origins import notes_on_origins
from callbacks.private_refusals import refusals, refuse_scheduler
from callbacks.row_independence import check_row_independence
from callbacks.trial_checkpoint import try_checkpoint
from callbacks.untrained_state import UntrainedState
from datamodules.batch import LogicalBatch
from datamodules.private_data import PrivateData
from doppel.console.say import confirm
from doppel.errors import UserError
from doppel.privacy.checkpoint import privacy_state, weights_fingerprint
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.private_step import PrivateStep, PrivateTrainingError
from doppel.privacy.spec import MAX_GRAD_NORM, DPPlan, PrivacyArguments
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.loss_scale import StaticLossScale
from lightning_modules.training.step_policy import ClosedStep, PlainStep

log = logging.getLogger(__name__)

__all__ = ["DifferentialPrivacy", "PrivateTrainingError"]


class DifferentialPrivacy(Callback):
    """Trains a :class:`LogicalBatchModule` on :class:`PrivateData` with DP-SGD (Abadi et al., 2016).

    Without this callback the same configuration is the non-private run.

    Formal guarantees:
        Neighbouring data sets differ by one *unit*. The data module draws each unit independently with rate q = B/N
        (Poisson). :class:`~doppel.privacy.private_step.PrivateStep`, which this callback puts into the module, clips
        each sampled unit to norm C, adds noise σC once to the sum over ranks, and divides by the public B; it holds the
        argument for that. Every step is therefore one Poisson-subsampled Gaussian mechanism (q, σ); every step, an
        empty one too, is written to the ledger *before* its batch is computed, so ε of the ledger is never below what
        was released. Steps that a crash rolled back stay spent. The weights of every checkpoint are in the ledger
        before the checkpoint is on disk, so that nobody vouches for other weights under its name.

    What would break this is refused at start, by name: a module or a data module that does not follow the protocol
    (``docs/own-model.md``), a sampler other than Poisson, ``gradient_clip_val``, ``accumulate_grad_batches``, automatic
    optimisation, BatchNorm and layers without a clipping rule, gradients summed in half precision, products of float32
    at a lower one, a DDP strategy with a reducer, a checkpoint of steps that the ledger has not. Once the model is on
    its device, a row that changes what another one gives is refused too, see
    :func:`~callbacks.row_independence.check_row_independence`. An optimiser step without noise, or without a line in
    the ledger, is refused when it comes; so is one after which the module would have more to tell than its trained
    weights, see :class:`~callbacks.untrained_state.UntrainedState`.

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
        self.ledger: Ledger | None = None  # of rank 0 alone
        self.spent: float | None = None  # ε of the ledger, as of the last twentieth of the steps
        self.step: PrivateStep | None = None
        self._loss_scale = 1.0
        self._mechanism_id = ""
        self._num_steps = 0  # that the weights have
        self._last_step = 0  # after which the training ends
        self._paid: int | None = None  # the step whose line is in the ledger
        self._restored: dict[str, Any] | None = None
        self._untrained: UntrainedState | None = None
        self._first_step = 0  # of this fit
        self._restored_weights = ""  # fingerprint of them, on rank 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what would break the guarantee, before anything is computed; replace a gradient scaler.

        ``validate`` and ``test`` spend nothing, and tell nothing of files that are not declared public.
        """
        self._paid = None
        if stage != "fit":
            if isinstance(pl_module, LogicalBatchModule):
                pl_module.step_policy = ClosedStep(self.privacy.log_private_diagnostics)
            return
        reasons = refusals(trainer, pl_module, self.privacy.log_private_diagnostics)
        if reasons:
            raise PrivateTrainingError("a private run refuses this configuration: " + "; ".join(reasons))
        precision = trainer.precision_plugin
        if isinstance(precision, MixedPrecision) and precision.precision == "16-mixed":
            self._loss_scale = self.privacy.fp16_loss_scale
            trainer.strategy.precision_plugin = StaticLossScale(self._loss_scale, precision.device)
        trainer.strategy.checkpoint_io = BoundCheckpoints(trainer.strategy.checkpoint_io, self._note_weights)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Calibrate σ, open the ledger, make the module's step private."""
        assert isinstance(pl_module, LogicalBatchModule) and trainer.max_epochs is not None
        data = cast(PrivateData, trainer.datamodule)  # type: ignore[attr-defined]
        spec, planned_steps = self._plan(data, trainer.max_epochs)
        self.spec = spec
        wanted_steps = planned_steps if trainer.max_steps < 0 else min(trainer.max_steps, planned_steps)
        self._num_steps = 0 if self._restored is None else self._restored["num_steps"]
        origins = pl_module.origins
        affordable = self._open_ledger(data, spec, planned_steps, origins) if trainer.is_global_zero else 0
        self._last_step = self._afford(wanted_steps, trainer.strategy.broadcast(affordable))
        if self._last_step < wanted_steps:
            question = f"Go on with {self._last_step} of {wanted_steps} steps, all that the budget affords?"
            if not trainer.strategy.broadcast(confirm(question) if trainer.is_global_zero else True):
                raise UserError("nothing was started: the checkpoint that is there stays, and so does what was spent")
        self.step = pl_module.step_policy = PrivateStep(
            pl_module,
            spec,
            trainer.strategy.broadcast,
            self._loss_scale,
            self.privacy.log_private_diagnostics,
            self.privacy.seed,
        )
        self._untrained = UntrainedState(pl_module)
        self._say(f"target ε = {self.privacy.target_epsilon:g}", wanted_steps)
        if spec.max_grad_norm == MAX_GRAD_NORM and not hasattr(pl_module, "codec"):  # of a module of one's own
            rank_zero_info(
                f"  C is {MAX_GRAD_NORM:g}, the default, which suits language models: for a classifier take "
                "--privacy.max_grad_norm 1"
            )
        for logger in trainer.loggers:
            logger.log_hyperparams({"privacy": {**spec.to_dict(), "scope": self.privacy.scope}})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Try two rows and a checkpoint; end after the last step, for Lightning has restored ``max_steps`` by now.

        From a checkpoint of an epoch's end it would count that epoch again, and end one epoch early.
        """
        trainer.fit_loop.epoch_loop.max_steps = self._last_step
        refuse_scheduler(trainer)
        assert isinstance(pl_module, LogicalBatchModule)
        self._first_step = trainer.global_step
        assert self._untrained is not None
        for optimizer in trainer.optimizers:
            self._untrained.refuse_strangers(optimizer)
        self._untrained.begin_step()
        self._note_unchecked(check_row_independence(pl_module))
        self._untrained.refuse_write("a made-up row of its probe()")
        self._untrained.refuse_change("a made-up row of its probe()", by_value=False)
        try_checkpoint(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: LogicalBatch, batch_idx: int
    ) -> None:
        """Write the step to the ledger before it runs; the ledger refuses one that the budget does not afford."""
        if self.ledger is not None:
            self.ledger.spend(self._mechanism_id)
        self._paid = trainer.global_step
        if self._untrained is not None:
            self._untrained.begin_step()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Refuse a step without noise, or one more than the ledger was told of, or one that changed what has no noise.

        The first two come of a module whose own ``training_step`` leaves out the policy, or takes several steps for a
        batch.
        """
        if self.step is None or self.step.finished != trainer.global_step:
            what = "an optimiser step on gradients without noise"
        elif self._paid != trainer.global_step:
            what = "a second optimiser step for one logical batch"
        else:
            if self._untrained is not None:
                self._untrained.refuse_strangers(optimizer)
                self._untrained.refuse_write("a step")
            self._refuse_change("a step", by_value=trainer.global_step == self._first_step)
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
        """Log what is spent."""
        self._num_steps = trainer.global_step
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.global_step >= self._last_step or trainer.global_step % every == 0:
            self._log(trainer)
        elif trainer.global_step % math.ceil(self._last_step / 20) == 0 and self.ledger is not None:  # for the bar
            scope = self.privacy.scope
            self.spent = math.inf if self.ledger.voids(scope) else self.ledger.epsilon(scope)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say what holds now, of weights that may be taken from here without a checkpoint."""
        self._refuse_change("the training", by_value=True)
        self._say_spent()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Say what holds now: what was released before stays spent."""
        self._say_spent()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give the module its ordinary step back."""
        if self.step is not None:
            self.step.close()
            self.step = self._untrained = None
        if isinstance(pl_module, LogicalBatchModule):
            pl_module.step_policy = PlainStep()

    def state_dict(self) -> dict[str, Any]:
        """What the weights were trained under, their steps, and the mechanism and the ledger that paid for these."""
        return {
            "spec": None if self.spec is None else self.spec.to_dict(),
            "scope": self.privacy.scope,
            "mechanism_id": self._mechanism_id,
            "num_steps": self._num_steps,
            "ledger": None if self.ledger is None else self.ledger.anchor,
        }

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to write what a private step has changed without noise."""
        if self._untrained is not None:
            self._untrained.refuse_changed(checkpoint["state_dict"])

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to go on from weights that were trained without a guarantee: no ledger has paid for them."""
        if trainer.state.fn == TrainerFn.FITTING and privacy_state(checkpoint) is None:
            raise PrivateTrainingError(
                "the checkpoint is of a training without privacy, whose weights no ε covers: leave out ckpt_path; "
                "weights of public data are given as the model's init_weights"
            )
        if trainer.is_global_zero:
            self._restored_weights = weights_fingerprint(checkpoint["state_dict"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the checkpoint's plan, to compare it with this run's."""
        self._restored = state_dict

    def _note_weights(self, checkpoint: dict[str, Any]) -> None:
        """Write the weights of a checkpoint to the ledger; not those of the trial, before the first step is paid."""
        state = privacy_state(checkpoint)
        if state is None:  # such as the bare weights that a spawned rank 0 hands to the process that started it
            return
        fingerprint = weights_fingerprint(checkpoint["state_dict"])  # what has none is refused by the trial
        if self.ledger is not None and self._paid is not None and state["num_steps"] > 0:
            self.ledger.note_weights(state["mechanism_id"], state["num_steps"], fingerprint)

    @property
    def _stage(self) -> str:
        """Name of this training in the ledger."""
        return self.privacy.stage or "fit"

    def _plan(self, data: PrivateData, max_epochs: int) -> tuple[DPPlan, int]:
        """The plan of this run, which must be that of the checkpoint it goes on from; the steps of its stage.

        Raises:
            PrivateTrainingError: It is another one, or says nothing of a stage of so many epochs.
        """
        epochs = self.privacy.epochs or [float(max_epochs)]
        if max_epochs not in epochs:
            raise PrivateTrainingError(
                f"trainer.max_epochs is {max_epochs}, but the budget is planned for stages of {epochs} epochs: "
                "set max_epochs to one of them, or list it in privacy.epochs"
            )
        spec = self.privacy.plan(data.num_units, data.batch_size, epochs, data.unit, data.max_rows_per_unit)
        before = spec.to_dict() if self._restored is None else self._restored["spec"]
        changed = sorted(name for name, value in spec.to_dict().items() if before.get(name) != value)
        if changed:
            raise PrivateTrainingError(
                f"the checkpoint was trained under another privacy plan ({', '.join(changed)} differ): "
                "resume with the settings it was started with, or start a new run"
            )
        return spec, spec.stage_steps[epochs.index(max_epochs)]

    def _open_ledger(self, data: PrivateData, spec: DPPlan, planned_steps: int, origins: list[dict[str, Any]]) -> int:
        """Announce the mechanism; how many of its steps the budget affords."""
        if self.privacy.ledger_path is None:
            raise PrivateTrainingError("privacy has no ledger_path: give --run_dir RUN/STAGE, or set it in the config")
        self.ledger = Ledger(self.privacy.ledger_path)
        if self._restored is not None:
            self._check_paid(self.ledger, self._restored)
        inherited = notes_on_origins(self.ledger, self.privacy.scope, origins)
        self._mechanism_id = self.ledger.open_mechanism(
            scope=self.privacy.scope,
            stage=self._stage,
            spec=spec,
            planned_steps=planned_steps,
            data_fingerprint=data.data_fingerprint,
        )
        if data.privacy_caveat:
            self.ledger.add_caveat(self.privacy.scope, data.privacy_caveat, voids=False)
        if self.privacy.log_private_diagnostics:
            text = f"the figures named private/… that {self._stage} has logged are not covered"
            self.ledger.add_caveat(self.privacy.scope, text, voids=False)
        for text, voids in inherited:
            self.ledger.add_caveat(self.privacy.scope, text, voids=voids)
        for text in self._fixed_seeds(data):
            self.ledger.add_caveat(self.privacy.scope, text, voids=True)
        before = self.ledger.spent_steps(self._mechanism_id)
        if before and self._restored is None:
            log.warning(
                "the ledger %s has %d steps of %s, and this training begins anew: it pays on top of them. "
                "--ckpt_path last goes on from a checkpoint, where there is one",
                self.ledger.path,
                before,
                self._mechanism_id,
            )
        return self.ledger.affordable(self._mechanism_id, later=spec.histogram)

    def _refuse_change(self, what: str, by_value: bool) -> None:
        if self._untrained is not None:
            self._untrained.refuse_change(what, by_value)

    def _note_unchecked(self, why: str | None) -> None:
        """Let the ledger, and so every card, name what the row check could not tell."""
        if why is None:
            return
        text = f"that the loss of a row depends on that row alone was not checked: {why}"
        rank_zero_info(text)
        if self.ledger is not None:
            self.ledger.add_caveat(self.privacy.scope, text, voids=False)

    def _fixed_seeds(self, data: PrivateData) -> list[str]:
        """What a reader of the configuration could undo, in words."""
        seeds = [
            ("privacy.seed", self.privacy.seed, "can subtract the noise"),
            ("data.sampling_seed", getattr(data, "sampling_seed", None), "knows which units were drawn"),
        ]
        return [
            f"{name} of {self._stage} was fixed, and whoever reads it {what}"
            for name, seed, what in seeds
            if seed is not None
        ]

    def _check_paid(self, ledger: Ledger, state: dict[str, Any]) -> None:
        """Refuse a checkpoint of another mechanism, or one of steps or weights that the ledger has not."""
        own = ledger.mechanism_id(self.privacy.scope, self._stage)
        why = ledger.gap(state, self._restored_weights)
        if state["mechanism_id"] != own:
            why = f"its steps were paid as {state['mechanism_id']}, and this training is {own}"
        if why is not None:
            raise PrivateTrainingError(
                f"training cannot go on from this checkpoint: {why}; give the run folder, scope and stage that it was "
                "begun in, with their ledger"
            )

    def _afford(self, wanted_steps: int, affordable: int) -> int:
        """The last step: the last that is wanted, or an earlier one, after which the ledger would refuse the next.

        Raises:
            BudgetExceededError: Steps remain, and the budget affords none.
        """
        remaining = wanted_steps - self._num_steps
        if affordable == 0 and remaining > 0:
            raise BudgetExceededError(
                f"the ledger {self.privacy.ledger_path} has no step left for scope {self.privacy.scope!r} (target ε = "
                f"{self.privacy.target_epsilon:g}): use the model that is there; another training on the "
                "same people would spend on top of it"
            )
        if affordable < remaining:
            log.warning(
                "%d steps remain but the budget affords %d (steps rolled back by a crash stay spent): "
                "training will stop there",
                remaining,
                affordable,
            )
        return min(wanted_steps, self._num_steps + affordable)

    def _say_spent(self) -> None:
        if self.ledger is not None and self._mechanism_id:
            spent = "" if self.ledger.voids(self.privacy.scope) else f"{self.ledger.epsilon(self.privacy.scope):.3f}"
            self._say(
                f"spent ε = {spent} of {self.privacy.target_epsilon:g}", self.ledger.spent_steps(self._mechanism_id)
            )

    def _say(self, epsilon: str, steps: int) -> None:
        """The guarantee in two lines, at the start and the end of every training; rank 0 has the ledger."""
        if self.ledger is None or self.spec is None:
            return
        scope, spec = self.privacy.scope, self.spec
        if void := self.ledger.voids(scope):
            rank_zero_info(f"NOT PRIVATE, scope {scope!r}: {'; '.join(void)}")
            return
        rank_zero_info(f"PRIVATE, scope {scope!r}: {epsilon} at δ = {spec.budget.delta:.3g}")
        rank_zero_info(
            f"  for one {spec.budget.unit} more or less; N = {spec.num_units}, σ = {spec.noise_multiplier:.4g}, "
            f"{steps} steps of ~{spec.expected_batch_size}"
        )

    def _log(self, trainer: pl.Trainer) -> None:
        if self.ledger is None or self.spec is None or self.step is None:
            return
        void = self.ledger.voids(self.privacy.scope)
        metrics = {
            "dp/epsilon": math.inf if void else self.ledger.epsilon(self.privacy.scope),
            "dp/delta": self.spec.budget.delta,
            "dp/noise_multiplier": self.spec.noise_multiplier,
            "dp/sample_rate": self.spec.sample_rate,
            "dp/num_steps": float(self.ledger.spent_steps(self._mechanism_id)),
        }
        if self.privacy.log_private_diagnostics:
            metrics["private/num_nonfinite"] = float(self.step.clipper.num_nonfinite)
        self.spent = metrics["dp/epsilon"]
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

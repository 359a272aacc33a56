"""The one callback that makes any Doppel training run differentially private."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import Optimizer

from datamodules.batch import LogicalBatch, MicroBatch
from doppel.errors import UserError
from doppel.gradients import GradientReducer
from doppel.phases import phase
from doppel.privacy.accounting import Accountant
from doppel.privacy.arguments import PrivacyArguments
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.noise import GaussianNoise, Secret
from doppel.privacy.spec import PrivacySpec, plan
from lightning_modules.training.loss_scale import StaticLossScale
from lightning_modules.training.strategy import LogicalBatchDDPStrategy

log = logging.getLogger(__name__)


def _unweighted(losses: Tensor, batch: MicroBatch) -> Tensor:
    return losses  # the clipper weighs the gradients, after it has clipped them


class PrivateTrainingError(UserError):
    """A setting that would break the guarantee."""


class DifferentialPrivacy(Callback):
    """Trains with DP-SGD: per-sample clipping, Gaussian noise, accounting in a ledger (SPEC.md §0).

    Without this callback the same configuration is the non-private run.

    Formal guarantees:
        Neighbouring data sets differ by one *unit*. The data module draws each unit independently with rate q = B/N
        (Poisson). The clipper adds clip(gᵤ, C) of each sampled unit u to the gradient, so adding or removing one unit
        moves the sum by at most C in L2 norm; ranks hold disjoint parts of one sample, so this holds for their sum too.
        Noise of standard deviation σC is added once to that sum (all ranks share one secret stream and add the same
        noise), and the division by the public B is post-processing. Where turns carry weights in [0, 1], the clipped
        gradient of a unit is multiplied by the mean weight of its rows in the step, a function of that unit alone: its
        norm stays at most C, and nothing is normalised by the weights of others. Every step is therefore one
        Poisson-subsampled Gaussian mechanism (q, σ); every step, an empty one too, is written to the ledger *before*
        its batch is computed, so ε of the ledger is never below what was released. Steps that a crash rolled back stay
        spent.

    Dropout draws from a secret of its own, anew for each step and rank. A row's mask depends on its place in the batch,
    so under a seed that the reader knows, one unit more would change the masks of the others, and the sum by more than
    C. Masks that nobody knows are independent of the unit's presence: given the same masks for the units that they
    share, neighbouring data sets differ by one clipped gradient, and the mechanism is a mixture of such Gaussians.

    What would break this is refused at start, by name: a sampler other than Poisson, ``gradient_clip_val``,
    ``accumulate_grad_batches``, automatic optimisation, BatchNorm and layers without a clipping rule, gradients summed
    in half precision, a DDP strategy with a reducer.

    Precision ``16-mixed``, for devices without bfloat16, trains under a constant loss scale, for Lightning's gradient
    scaler skips steps depending on the data (see
    :class:`~lightning_modules.training.loss_scale.StaticLossScale`). A unit whose
    gradient is not finite contributes zero. Nothing public tells how many did: if a run does not learn, look at
    ``private/num_nonfinite`` behind closed doors, and lower the scale.

    Args:
        privacy: What the user decides; the other arguments are its fields, for configurations that still name them.
    """

    def __init__(
        self,
        privacy: PrivacyArguments | None = None,
        target_epsilon: float = 8.0,
        delta: float | None = None,
        epochs: list[float] | None = None,
        max_grad_norm: float = 0.1,
        accountant: Accountant = "pld",
        ledger_path: str | None = None,
        scope: str = "default",
        stage: str | None = None,
        log_private_diagnostics: bool = False,
        fp16_loss_scale: float = 4096.0,
        seed: int | None = None,
        histogram_noise_multiplier: float | None = None,
    ) -> None:
        self.privacy = privacy or PrivacyArguments(
            target_epsilon,
            delta,
            epochs,
            max_grad_norm,
            accountant,
            ledger_path,
            scope,
            stage,
            log_private_diagnostics,
            fp16_loss_scale,
            seed,
            histogram_noise_multiplier,
        )
        self.spec: PrivacySpec | None = None
        self.ledger: Ledger | None = None
        self.clipper: PerSampleClipper | None = None
        self._loss_scale = 1.0
        self._mechanism_id = ""
        self._affordable = 0
        self._num_steps = 0
        self._restored: dict[str, Any] | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what would break the guarantee, before anything is computed; replace a gradient scaler."""
        if stage != "fit":
            return
        self._refuse(trainer, pl_module)
        precision = trainer.precision_plugin
        if isinstance(precision, MixedPrecision) and precision.precision == "16-mixed":
            self._loss_scale = self.privacy.fp16_loss_scale
            trainer.strategy.precision_plugin = StaticLossScale(self.privacy.fp16_loss_scale, precision.device)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Calibrate σ, open the ledger, attach the clipper."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert trainer.max_epochs is not None
        epochs = self.privacy.epochs or [float(trainer.max_epochs)]
        if trainer.max_epochs not in epochs:
            raise PrivateTrainingError(
                f"trainer.max_epochs is {trainer.max_epochs}, but the budget is planned for stages of {epochs} epochs: "
                "set max_epochs to one of them, or list it in the callback's epochs"
            )
        self.spec = spec = plan(
            num_units=data.num_units,
            batch_size=data.batch_size,
            epochs=epochs,
            target_epsilon=self.privacy.target_epsilon,
            delta=self.privacy.delta,
            accountant=self.privacy.accountant,
            unit=data.unit,
            max_grad_norm=self.privacy.max_grad_norm,
            max_rows_per_unit=getattr(data, "max_rows_per_unit", None),
            histogram_noise_multiplier=self.privacy.histogram_noise_multiplier,
        )
        before = {} if self._restored is None else self._restored["spec"]  # older checkpoints have fewer fields
        changed = sorted(name for name, value in before.items() if spec.to_dict()[name] != value)
        if changed:
            raise PrivateTrainingError(
                f"the checkpoint was trained under another privacy specification ({', '.join(changed)} differ): "
                "resume with the settings it was started with, or start a new run"
            )
        planned_steps = spec.stage_steps[epochs.index(trainer.max_epochs)]
        wanted_steps = planned_steps if trainer.max_steps < 0 else min(trainer.max_steps, planned_steps)
        trainer.fit_loop.epoch_loop.max_steps = wanted_steps
        affordable = 0
        if trainer.is_global_zero:
            if self.privacy.ledger_path is None:
                raise PrivateTrainingError(
                    "DifferentialPrivacy has no ledger_path: give --run_dir RUN/STAGE, or set it in the config"
                )
            self.ledger = Ledger(self.privacy.ledger_path)
            self._mechanism_id = self.ledger.open_mechanism(
                scope=self.privacy.scope,
                stage=self.privacy.stage or "fit",
                spec=spec,
                planned_steps=planned_steps,
                data_fingerprint=data.data_fingerprint,
            )
            if caveat := getattr(data, "privacy_caveat", None):
                self.ledger.add_caveat(self.privacy.scope, caveat, voids=False)
            affordable = self.ledger.affordable(self._mechanism_id)
        self._affordable = trainer.strategy.broadcast(affordable)
        self._num_steps = 0 if self._restored is None else self._restored["num_steps"]
        remaining = wanted_steps - self._num_steps  # the trainer restores its own counters after this hook
        if self._affordable == 0 and remaining > 0:
            raise BudgetExceededError(
                f"the ledger {self.privacy.ledger_path} has no step left for scope {self.privacy.scope!r} (target ε = "
                f"{self.privacy.target_epsilon:g}): use the model that is there, or start another run folder"
            )
        if self._affordable < remaining:
            log.warning(
                "%d steps remain but the budget affords %d (steps rolled back by a crash stay spent): "
                "training will stop there",
                remaining,
                self._affordable,
            )
        self.clipper = PerSampleClipper(pl_module, max_grad_norm=self.privacy.max_grad_norm)
        self._noise = GaussianNoise(spec.noise_multiplier, self.privacy.max_grad_norm, seed=self.privacy.seed)
        self._noise.share_secret(trainer.strategy.broadcast)
        self._public_hooks = (
            pl_module.micro_batch_context,
            pl_module.metric_name,
            pl_module.run_trunk,
            pl_module.weigh_losses,
            pl_module.step_seed,
        )
        dropout = Secret(self.privacy.seed)
        pl_module.step_seed = lambda step, rank: dropout.derive("dropout", step, rank) % 2**63  # type: ignore
        pl_module.weigh_losses = _unweighted  # type: ignore[assignment]
        if pl_module.is_compiled:
            pl_module.run_trunk = self.clipper.compile(pl_module.trunk, pl_module.compile_backend)  # type: ignore
        pl_module.micro_batch_context = self._clipped  # type: ignore[assignment]
        pl_module.metric_name = self._metric_name  # type: ignore[assignment]
        for logger in trainer.loggers:
            logger.log_hyperparams({"privacy": {**spec.to_dict(), "scope": self.privacy.scope}})

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: LogicalBatch, batch_idx: int
    ) -> None:
        """Write the step to the ledger before it runs."""
        if self._affordable <= 0:
            raise BudgetExceededError(
                f"one more step would pass the budget of scope {self.privacy.scope!r} "
                f"(target ε = {self.privacy.target_epsilon:g})"
            )
        self._affordable -= 1
        if self.ledger is not None:
            self.ledger.spend(self._mechanism_id)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Add the noise, once for all ranks, to the clipped sum that was divided by the expected batch size."""
        assert self.spec is not None
        parameters = (p for p in pl_module.parameters() if p.requires_grad)
        with phase("noise"):
            self._noise.add_(parameters, step=trainer.global_step, divisor=self.spec.batch_size)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: STEP_OUTPUT,
        batch: LogicalBatch,
        batch_idx: int,
    ) -> None:
        """Log what is spent; stop before a step that the budget does not afford."""
        self._num_steps = trainer.global_step
        last = trainer.global_step >= trainer.max_steps or self._affordable <= 0
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if last or trainer.global_step % every == 0:
            self._log(trainer, exact=last)
        if self._affordable <= 0 and not trainer.should_stop:
            trainer.should_stop = True

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Detach from the module."""
        if self.clipper is not None:
            self.clipper.close()
            self.clipper = None
            (  # type: ignore[assignment]
                pl_module.micro_batch_context,
                pl_module.metric_name,
                pl_module.run_trunk,
                pl_module.weigh_losses,
                pl_module.step_seed,
            ) = self._public_hooks

    def state_dict(self) -> dict[str, Any]:
        """The specification that the weights were trained under, the mechanism in the ledger, and steps taken."""
        return {
            "spec": None if self.spec is None else self.spec.to_dict(),
            "scope": self.privacy.scope,
            "mechanism_id": self._mechanism_id,
            "num_steps": self._num_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the checkpoint's specification, to compare it with this run's."""
        self._restored = state_dict

    @contextmanager
    def _clipped(self, batch: MicroBatch, reducer: GradientReducer | None) -> Iterator[None]:
        assert self.clipper is not None
        with self.clipper.capture(batch.num_units, rows_per_unit=batch.rows_per_unit):
            yield
        on_ready = None if reducer is None else reducer.ready
        with phase("clip"):
            self.clipper.accumulate(self._loss_scale, batch.weights, on_ready)

    def _metric_name(self, name: str, is_public: bool) -> str | None:
        if is_public:
            return name
        return f"private/{name.replace('/', '_')}" if self.privacy.log_private_diagnostics else None

    def _log(self, trainer: pl.Trainer, exact: bool) -> None:
        if self.ledger is None or self.spec is None:
            return
        metrics = {
            "dp/epsilon": self.ledger.epsilon(self.privacy.scope, fast=not exact),
            "dp/delta": self.spec.delta,
            "dp/noise_multiplier": self.spec.noise_multiplier,
            "dp/sample_rate": self.spec.sample_rate,
            "dp/num_steps": float(self.ledger.spent_steps(self._mechanism_id)),
        }
        if self.privacy.log_private_diagnostics and self.clipper is not None:
            metrics["private/num_nonfinite"] = float(self.clipper.num_nonfinite)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)

    def _refuse(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        reasons = []
        if trainer.gradient_clip_val:
            reasons.append("trainer.gradient_clip_val is set; remove it, max_grad_norm clips each unit")
        if trainer.accumulate_grad_batches != 1:
            reasons.append("trainer.accumulate_grad_batches is not 1; a logical batch is one step, use batch_size")
        if pl_module.automatic_optimization or not hasattr(pl_module, "micro_batch_context"):
            reasons.append(f"{type(pl_module).__name__} does not train by logical batches; use a CausalLM")
        if getattr(data, "sampling", None) != "poisson":
            reasons.append("the data module does not draw Poisson samples; set data.init_args.sampling: poisson")
        if trainer.precision not in ("32-true", "64-true", "bf16-mixed", "16-mixed"):
            reasons.append(
                f"precision {trainer.precision} sums gradients and noise in half precision; use 32-true, bf16-mixed, "
                "or 16-mixed on devices without bfloat16"
            )
        if not 1 <= self.privacy.fp16_loss_scale < math.inf:
            reasons.append(f"fp16_loss_scale is {self.privacy.fp16_loss_scale}; give a finite number of at least 1")
        if isinstance(trainer.strategy, DDPStrategy) and not isinstance(trainer.strategy, LogicalBatchDDPStrategy):
            reasons.append("the DDP strategy all-reduces inside backward; set trainer.strategy: ddp_logical")
        elif not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
            reasons.append(
                f"strategy {type(trainer.strategy).__name__} is not supported; set trainer.strategy: ddp_logical"
            )
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            reasons.append("trainer.fast_dev_run would spend budget on a debugging step; leave out the DP overlay")
        if getattr(trainer, "overfit_batches", 0):
            reasons.append("trainer.overfit_batches repeats batches; remove it")
        if reasons:
            raise PrivateTrainingError("a private run refuses this configuration: " + "; ".join(reasons))

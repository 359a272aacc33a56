"""What a private run refuses before a step is spent: settings that break the guarantee."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
)
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from datamodules.private_data import PrivateData, missing_members
from doppel.privacy.optimizer import DPAdam
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.strategy import LogicalBatchDDPStrategy

#: Callbacks that no private run takes, and why.
_NEVER: dict[type, str] = {
    LearningRateFinder: "chooses by what private steps give; leave it out, and try rates on public data",
    BatchSizeFinder: "tries steps that would be charged; leave it out: data.max_tokens_per_micro_batch bounds memory",
    ModelPruning: "puts other parameters in the place of those that are clipped; leave it out, and prune what is made",
    BaseFinetuning: "trains other parameters from some epoch on, where the training would end; leave it out: freeze "
    "before the training, and let a second one of the same budget train the rest",
    GradientAccumulationScheduler: "sums several steps; leave it out: a logical batch is one step, of data.batch_size",
}
#: Figures that follow public numbers alone, and that a callback may monitor.
_PUBLIC = ("step", "epoch", "train/learning_rate")


def refusals(trainer: pl.Trainer, module: pl.LightningModule, logs_private: bool = False) -> list[str]:
    """Return reasons against training ``module`` privately, in words that say what to set; none where it may be."""
    if getattr(module, "not_private_because", None) is not None:
        return [
            f"{type(module).__name__} cannot be trained privately, for {module.not_private_because}; leave out the "
            "privacy key, and train on public or synthetic data"
        ]
    is_lora = getattr(module, "trains_lora_alone", False)
    reasons = [*_of_module(module), *refusals_of_settings(trainer, getattr(trainer, "datamodule", None), is_lora)]
    if logs_private and "WANDB_SWEEP_ID" in os.environ:
        reasons.append(
            "a sweep chooses among runs by what they log, and log_private_diagnostics logs exact private figures; "
            "leave it out"
        )
    return reasons


def refusals_of_settings(trainer: pl.Trainer, data: object, is_lora: bool = False) -> list[str]:
    """Return those reasons that a trainer and a data module tell by themselves, before there is a model.

    Args:
        trainer: The trainer.
        data: The data module.
        is_lora: Whether the model will train LoRA weights alone, which are float32 under ``bf16-true`` too.
    """
    reasons = [*_of_data(data), *_of_trainer(trainer, is_lora)]
    return [*reasons, *(why for callback in trainer.callbacks for why in _of_callback(callback, data))]  # type: ignore[attr-defined]


def refusals_of_bands(trainer: pl.Trainer, optimizers: Sequence[Optimizer]) -> list[str]:
    """Return reasons against noise that later steps take back, in such words."""
    reasons = [
        f"{type(own).__name__} loses what privacy.bands gains (.17 nats in the cross-entropy per word, with Adam): set "
        "model.optimizer to doppel.privacy.optimizer.DPAdam, linear in noisy gradients, or privacy.bands to 1"
        for own in optimizers
        if not isinstance(own, DPAdam)
    ]
    if trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
        reasons.append("trainer.reload_dataloaders_every_n_epochs deals the groups of privacy.bands anew; remove it")
    return reasons


def refuse_other_sampler(data: object, bands: int) -> None:
    """Refuse a loader that was made before ``data.bands`` was set, or without the ``poisson`` of ``DataModule``."""
    if getattr(getattr(data, "sampler", None), "bands", 1) != bands:
        raise PrivateTrainingError(
            f"its loader does not draw from the {bands} groups of privacy.bands: draw by the poisson() of "
            "datamodules.data_module.DataModule, in train_dataloader, or set privacy.bands to 1; a schedule that asks "
            "the trainer for estimated_stepping_batches has it made too early",
            about=type(data).__name__,
        )


def refuse_optimizers(trainer: pl.Trainer) -> None:
    """Refuse what takes no step of a logical batch: one optimiser does, by gradients alone, and one schedule of steps.

    Raises:
        PrivateTrainingError: There is another number of them, or one asks for the loss, which no private step gives.
    """
    optimizers = [own for own in trainer.optimizers if own.param_groups]  # Lightning puts one without for None
    schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
    if len(optimizers) != 1 or len(schedules) > 1:
        raise PrivateTrainingError(
            f"configure_optimizers gives {len(optimizers) or 'no'} optimisers and {len(schedules) or 'no'} schedules: "
            "a logical batch is one step of one optimiser; groups of parameters may have rates of their own"
        )
    check_optimizer(optimizers[0], *schedules)
    lacking = {name for group in optimizers[0].param_groups for name in optimizers[0].defaults.keys() - group.keys()}
    if lacking:  # a checkpoint's groups take the place of those that were built
        raise PrivateTrainingError(
            f"the checkpoint is of another optimiser than {type(optimizers[0]).__name__}, whose {sorted(lacking)[0]!r} "
            "it lacks: resume with the optimiser that the training began with"
        )


def check_optimizer(optimizer: Optimizer, scheduler: object = None) -> None:
    """Refuse an optimiser or a schedule that reads the loss.

    Raises:
        PrivateTrainingError: It does.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PrivateTrainingError(
            f"{type(optimizer).__name__} computes the loss again within a step, by a closure, and a step of a logical "
            "batch has none: give model.optimizer one that reads gradients alone, such as "
            "doppel.privacy.optimizer.DPAdam"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise PrivateTrainingError(
            "ReduceLROnPlateau lowers the learning rate by a metric, and a step has none that is not private: give "
            "lr_scheduler a schedule of steps, such as torch.optim.lr_scheduler.CosineAnnealingLR"
        )


def monitors(callback: object) -> list[str]:
    """Return the names of the figures by which a callback stops, saves or chooses."""
    given = getattr(callback, "monitor", None)
    named = given if isinstance(given, list | tuple | set) else [given]
    return [name for name in named if isinstance(name, str)]


def _of_callback(callback: object, data: object) -> list[str]:
    """Against a callback that changes what a step is, or that stops, saves or chooses by a figure that is not public.

    Allowed are figures of steps and of the validation file, if that is declared public: what is logged otherwise stays
    in the process, and would be missing at the end of the first epoch, which is paid by then.
    """
    kind = type(callback).__name__
    if why := next((why for known, why in _NEVER.items() if isinstance(callback, known)), None):
        return [f"{kind} {why}"]
    if getattr(data, "is_public", False):
        return []
    reasons = []
    for monitor in monitors(callback):
        of_validation = monitor.startswith(("val/", "val_"))
        if monitor in _PUBLIC or (of_validation and getattr(data, "val_is_public", False)):
            continue
        if monitor.startswith("private/"):
            why = "an exact private figure, which would choose what is released and when"
        elif of_validation:
            why = "and the validation file is not declared public, so that no such figure leaves the process"
        elif monitor.startswith("train/loss"):
            why = "the loss of private data, which stays in the process"
        else:
            why = "which nothing declares public, so that it stays in the process"
        reasons.append(
            f"{kind} monitors {monitor!r}, {why}; leave its monitor out, or name a figure val/… of a public validation "
            "file (data.val_is_public: true)"
        )
    return reasons


def _of_module(module: pl.LightningModule) -> list[str]:
    name = type(module).__name__
    if not isinstance(module, LogicalBatchModule) or module.automatic_optimization:
        return [
            f"{name} does not train by logical batches; derive it from lightning_modules.training."
            "logical_batch_module.LogicalBatchModule and define losses(batch), as docs/own-model.md shows"
        ]
    kind, own = type(module), ("training_step", "losses", "row_losses")
    if any(getattr(kind, method) is not getattr(LogicalBatchModule, method) for method in own):
        return []
    return [
        f"{name} does not say its losses; define losses(self, batch), which gives one for each row, of shape [rows]"
    ]


def _of_data(data: object) -> list[str]:
    if missing := missing_members(data):
        name = "without a data module, nothing says" if data is None else f"{type(data).__name__} does not say"
        return [
            f"{name} {', '.join(missing)}; give what datamodules.private_data.PrivateData names, as docs/own-model.md "
            "shows"
        ]
    if getattr(data, "limit_train_units", None) is not None:
        return [
            "limit_train_units trains on the first units, where an added unit would displace another; set "
            "data.keep_share, which decides for each unit by itself"
        ]
    if cast(PrivateData, data).sampling != "poisson":
        return ["the data module does not draw Poisson samples; set data.sampling: poisson"]
    return []


def _of_trainer(trainer: pl.Trainer, is_lora: bool) -> list[str]:
    reasons = []
    if trainer.gradient_clip_val:
        reasons.append("trainer.gradient_clip_val is set; remove it, max_grad_norm clips each unit")
    if trainer.accumulate_grad_batches != 1:
        reasons.append("trainer.accumulate_grad_batches is not 1; a logical batch is one step, use batch_size")
    if trainer.precision not in ("32-true", "64-true", "bf16-mixed", "16-mixed", *["bf16-true"] * is_lora):
        reasons.append(
            f"precision {trainer.precision} sums gradients and noise in half precision; use 32-true, bf16-mixed, "
            "or 16-mixed on devices without bfloat16"
        )
    if not isinstance(trainer.strategy, LogicalBatchDDPStrategy | SingleDeviceStrategy):
        name = type(trainer.strategy).__name__
        is_ddp = isinstance(trainer.strategy, DDPStrategy)
        why = "the DDP strategy all-reduces inside backward" if is_ddp else f"strategy {name} is not supported"
        reasons.append(f"{why}; set trainer.strategy: ddp_logical")
    if rounded := " and ".join(_rounded()):
        reasons.append(
            f"{rounded}, so that products are rounded more than the clipping norms allow for; leave out what sets it, "
            "which may be torch.set_float32_matmul_precision or allow_tf32"
        )
    if trainer._detect_anomaly:
        reasons.append("trainer.detect_anomaly ends the training of all where one row gives nan; remove it")
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        reasons.append("trainer.fast_dev_run would spend budget on a debugging step; leave out the privacy key")
    if getattr(trainer, "overfit_batches", 0):
        reasons.append("trainer.overfit_batches repeats batches; remove it")
    return reasons


def _rounded() -> list[str]:
    """Settings of PyTorch by which matrix products have fewer bits; each of its two interfaces sets what is read here.

    Convolutions have a switch of their own, on by default: their norms are those of gradients as they were computed.
    """
    backends: Any = torch.backends
    places = {"": backends, "cuda.matmul.": backends.cuda.matmul, "mkldnn.matmul.": backends.mkldnn.matmul}
    found = {f"{name}fp32_precision": getattr(place, "fp32_precision", None) for name, place in places.items()}
    set_to = [f"torch.backends.{name} is {value!r}" for name, value in found.items() if value in ("tf32", "bf16")]
    if getattr(backends.cuda.matmul, "allow_fp16_accumulation", False):
        set_to.append("torch.backends.cuda.matmul.allow_fp16_accumulation is set")
    return set_to

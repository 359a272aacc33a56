"""Opacus's ways to train, each as a function that makes one full step."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from benchmarks._harness import UnavailableError
from benchmarks._subject import MAX_GRAD_NORM, Step, Subject, plain_losses


def opacus_step(subject: Subject, mode: str) -> Step:
    """Opacus's own clipping with the same loss kernel and the same AdamW; its noise and division are left out.

    Args:
        subject: A model of its own: Opacus wraps it.
        mode: ``hooks``, ``functorch``, ``ew`` (expanded weights), ``fast`` (norms from per-sample gradients, two
            backward passes) or ``ghost`` (ghost norms, two backward passes).
    """
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    setting, two_passes = subject.setting, mode in ("fast", "ghost")
    if setting.precision == "fp16":
        raise UnavailableError("Opacus takes no loss scale out of its norms")
    wrapped = _wrap(subject.model, mode)
    make_optimizer = DPOptimizerFastGradientClipping if two_passes else DPOptimizer
    optimizer = make_optimizer(
        subject.optimizer,
        noise_multiplier=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        expected_batch_size=setting.rows,
        loss_reduction="sum",
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for number, input_ids in enumerate(subject.micro_batches):
            with setting.autocast():
                losses = plain_losses(wrapped, input_ids, position_ids=subject.position_ids)
            optimizer._is_last_step_skipped = number > 0  # between micro-batches the sum is kept
            if two_passes:
                DPTensorFastGradientClipping(wrapped, optimizer, losses, "sum").backward()
                optimizer.accumulate()
            else:
                losses.sum().backward()
                optimizer.clip_and_accumulate()
                for parameter in optimizer.params:
                    parameter.grad_sample = None
        for parameter in optimizer.params:
            parameter.grad, parameter.summed_grad = parameter.summed_grad, None
        optimizer._is_last_step_skipped = False
        subject.optimizer.step()

    return step


def _wrap(model: nn.Module, mode: str) -> Any:
    from opacus.grad_sample import (
        GradSampleModule,
        GradSampleModuleExpandedWeights,
        GradSampleModuleFastGradientClipping,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if mode == "ew":
            return GradSampleModuleExpandedWeights(model, loss_reduction="sum")
        if mode in ("hooks", "functorch"):
            return GradSampleModule(model, loss_reduction="sum", strict=False, force_functorch=mode == "functorch")
        return GradSampleModuleFastGradientClipping(
            model,
            loss_reduction="sum",
            strict=False,
            max_grad_norm=MAX_GRAD_NORM,
            use_ghost_clipping=mode == "ghost",
        )

"""Ways to train one GPT-2: ordinary, Doppel's and Opacus's, each as a function that makes one full step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from benchmarks._harness import UnavailableError
from doppel.compilation import compile_static
from doppel.head_loss import HeadLoss
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise

Step = Callable[[], None]

#: Architectures by name; weights are random, so no hub is needed.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 101, "n_positions": 32},
    "cpu-256": {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 8192, "n_positions": 128},
    "cpu-768": {"n_layer": 4, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 128},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
    "gpt2-medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "vocab_size": 50257, "n_positions": 1024},
    "gpt2-large": {"n_layer": 36, "n_embd": 1280, "n_head": 20, "vocab_size": 50257, "n_positions": 1024},
}

PRECISIONS = {"32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

MAX_GRAD_NORM = 0.1
NOISE_MULTIPLIER = 0.6
LOSS_SCALE = 2.0**10  # fp16
IGNORE_INDEX = -100


@dataclass(frozen=True)
class Setting:
    """What is trained, on what.

    Args:
        size: Key of :data:`SIZES`.
        rows: Rows of a micro-batch; every row is a unit.
        length: Tokens of a row, all of them labelled.
        num_micro_batches: Micro-batches of one optimizer step.
        device: ``cpu`` or ``cuda``.
        precision: Key of :data:`PRECISIONS`: autocast to half precision, or none.
        checkpointing: Activation checkpointing, one segment for each block.
    """

    size: str
    rows: int
    length: int
    num_micro_batches: int = 1
    device: str = "cpu"
    precision: str = "32"
    checkpointing: bool = False

    def __str__(self) -> str:
        micro_batches = f", {self.num_micro_batches} micro-batches a step" if self.num_micro_batches > 1 else ""
        precision = {"32": "fp32"}.get(self.precision, f"{self.precision} autocast")
        checkpointing = ", activation checkpointing" if self.checkpointing else ""
        return f"{self.size}, {self.rows} rows x {self.length} tokens{micro_batches}, {precision}{checkpointing}"

    @property
    def num_tokens(self) -> int:
        """Tokens of a step."""
        return self.rows * self.length * self.num_micro_batches

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's context."""
        dtype = PRECISIONS[self.precision]
        return torch.autocast(self.device, dtype, enabled=dtype is not None)


@dataclass
class Subject:
    """A model with its optimizer and its data; ordinary and Doppel's training take turns on the same one.

    Args:
        setting: What is trained.
        tied: Whether embedding and head share their weight, as in GPT-2.
        linear: Whether Hugging Face's ``Conv1D`` layers are replaced by ``nn.Linear`` (the same function), for which
            Opacus has rules.
    """

    setting: Setting
    tied: bool = True
    linear: bool = False
    model: GPT2LMHeadModel = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    micro_batches: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        config = GPT2Config(
            **SIZES[self.setting.size] | {"attn_implementation": "sdpa"},
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            tie_word_embeddings=self.tied,
        )
        self.model = GPT2LMHeadModel(config).train()
        if self.linear:
            _replace_conv1d(self.model)
        self.model.to(torch.device(self.setting.device))  # type: ignore[arg-type]
        if self.setting.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.0)
        shape = (self.setting.num_micro_batches, self.setting.rows, self.setting.length)
        self.micro_batches = list(torch.randint(config.vocab_size, shape).to(self.setting.device))

    @property
    def num_parameters(self) -> int:
        """Trained numbers, the tied weight once."""
        return sum(p.numel() for p in self.model.parameters())

    @cached_property
    def position_ids(self) -> Tensor:
        """One row of positions for each row: Opacus does not know positions that are broadcast."""
        length = self.setting.length
        return torch.arange(length, device=self.setting.device).repeat(self.setting.rows, 1)

    def losses(self, input_ids: Tensor) -> Tensor:
        """Mean token NLL of each row: the loss kernel of ordinary, Doppel's and Opacus's training alike."""
        return plain_losses(self.model, input_ids)

    def trunk(self, input_ids: Tensor) -> Tensor:
        """What the head is applied to."""
        hidden_BTD: Tensor = self.model.transformer(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden_BTD

    def fused_losses(self, trunk: Callable[[Tensor], Tensor], recompute: bool = False) -> Callable[[Tensor], Tensor]:
        """The same losses, with head and cross-entropy fused."""
        head_loss = HeadLoss(self.model.lm_head, recompute=recompute)
        return lambda input_ids: head_loss(trunk(input_ids), next_tokens(input_ids))


def next_tokens(input_ids: Tensor) -> Tensor:
    """Labels of each position: the next token, none for the last."""
    return F.pad(input_ids[:, 1:], (0, 1), value=IGNORE_INDEX)


def plain_losses(model: nn.Module, input_ids: Tensor, **kwargs: Tensor) -> Tensor:
    """Mean token NLL of each row, from all logits in float32."""
    logits_BTV = model(input_ids, **kwargs).logits
    labels_BT = next_tokens(input_ids)
    nll_NV = F.cross_entropy(
        logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    return nll_NV.view_as(labels_BT).sum(1) / (input_ids.shape[1] - 1)


def _replace_conv1d(model: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(child.nx, child.nf)
                linear.weight.data.copy_(child.weight.t())
                linear.bias.data.copy_(child.bias)
                setattr(module, name, linear)


# ------------------------------------------------------------------------------------------------ ordinary
def ordinary_step(subject: Subject, losses: Callable[[Tensor], Tensor]) -> Step:
    """Forward, backward, AdamW. In fp16 with a gradient scaler, as is usual."""
    setting, optimizer = subject.setting, subject.optimizer
    scaler = torch.amp.GradScaler(setting.device, init_scale=LOSS_SCALE, enabled=setting.precision == "fp16")

    def step() -> None:
        optimizer.zero_grad()
        for input_ids in subject.micro_batches:
            with setting.autocast():
                loss = losses(input_ids).sum()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def ordinary(subject: Subject) -> Step:
    """The loss kernel that Doppel and Opacus are given too."""
    return ordinary_step(subject, subject.losses)


def ordinary_fused(subject: Subject) -> Step:
    """Head and cross-entropy fused."""
    return ordinary_step(subject, subject.fused_losses(subject.trunk))


def ordinary_recomputed(subject: Subject) -> Step:
    """Head and cross-entropy fused, the logits' gradient formed twice instead of held."""
    return ordinary_step(subject, subject.fused_losses(subject.trunk, recompute=True))


def ordinary_compiled(subject: Subject, mode: str | None = None) -> Step:
    """The trunk compiled, head and cross-entropy fused: the same kernels as in Doppel's compiled path."""
    return ordinary_step(subject, subject.fused_losses(compile_static(subject.trunk, mode=mode)))


def ordinary_all_compiled(subject: Subject) -> Step:
    """Model and loss in one compiled graph: the fastest that ordinary training has."""
    compiled = compile_static(plain_losses)
    return ordinary_step(subject, lambda input_ids: compiled(subject.model, input_ids))


def hugging_face(subject: Subject) -> Step:
    """``model(input_ids, labels=input_ids).loss``: what a user of transformers writes."""
    return ordinary_step(subject, lambda input_ids: subject.model(input_ids=input_ids, labels=input_ids).loss)


# ------------------------------------------------------------------------------------------------ Doppel
def doppel_step(
    subject: Subject, losses: Callable[[Tensor], Tensor], clipper: PerSampleClipper, noise: GaussianNoise | None = None
) -> Step:
    """Forward, one backward, clipped sum, the same AdamW; the noise only if it is given."""
    setting, optimizer = subject.setting, subject.optimizer
    scale = LOSS_SCALE if setting.precision == "fp16" else 1.0
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        optimizer.zero_grad()
        for input_ids in subject.micro_batches:
            with clipper.capture(setting.rows):
                with setting.autocast():
                    loss = losses(input_ids).sum()
                (loss * scale).backward()
            clipper.accumulate(loss_scale=scale)
        if noise is not None:
            noise.add_(subject.model.parameters(), step=num_steps, divisor=1.0)
            num_steps += 1
        optimizer.step()

    return step


def doppel(subject: Subject) -> Step:
    """The engine as it is used."""
    return doppel_step(subject, subject.losses, PerSampleClipper(subject.model, MAX_GRAD_NORM))


def doppel_noise(subject: Subject) -> Step:
    """With the noise of the Gaussian mechanism."""
    clipper = PerSampleClipper(subject.model, MAX_GRAD_NORM)
    return doppel_step(subject, subject.losses, clipper, GaussianNoise(NOISE_MULTIPLIER, MAX_GRAD_NORM))


def doppel_fused(subject: Subject) -> Step:
    """Head and cross-entropy fused."""
    clipper = PerSampleClipper(subject.model, MAX_GRAD_NORM)
    return doppel_step(subject, subject.fused_losses(subject.trunk), clipper)


def doppel_recomputed(subject: Subject) -> Step:
    """Head and cross-entropy fused, the logits' gradient formed twice instead of held."""
    clipper = PerSampleClipper(subject.model, MAX_GRAD_NORM)
    return doppel_step(subject, subject.fused_losses(subject.trunk, recompute=True), clipper)


def doppel_compiled(subject: Subject, mode: str | None = None) -> Step:
    """The engine's compiled path, head and cross-entropy fused."""
    clipper = PerSampleClipper(subject.model, MAX_GRAD_NORM)
    return doppel_step(subject, subject.fused_losses(compiled_trunk(clipper, subject.trunk, mode)), clipper)


def compiled_trunk(
    clipper: PerSampleClipper, trunk: Callable[[Tensor], Tensor], mode: str | None
) -> Callable[[Tensor], Tensor]:
    """The trunk as the clipper compiles it: the one place that knows how it is asked to."""
    compile_function = getattr(clipper, "compile", None)
    if compile_function is None:
        raise UnavailableError("this engine has no compiled path")
    compiled: Callable[[Tensor], Tensor] = (
        compile_function(trunk) if mode is None else compile_function(trunk, mode=mode)
    )
    return compiled


def doppel_materialize(subject: Subject) -> Step:
    """The reference mode: per-sample gradients of everything, formed by Opacus."""
    make: Callable[..., PerSampleClipper] = PerSampleClipper
    try:
        clipper = make(subject.model, MAX_GRAD_NORM, mode="materialize")
    except TypeError:
        raise UnavailableError("this engine has no mode 'materialize'") from None
    return doppel_step(subject, subject.losses, clipper)


# ------------------------------------------------------------------------------------------------ Opacus
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


# ------------------------------------------------------------------------------------------------ names
def _on_cuda(subject: Subject, make: Callable[[Subject, str], Step]) -> Step:
    if subject.setting.device != "cuda":
        raise UnavailableError("CUDA graphs need a CUDA device")
    return make(subject, "reduce-overhead")


WAYS: dict[str, Callable[[Subject], Step]] = {
    "Hugging Face eager": hugging_face,
    "ordinary": ordinary,
    "ordinary, fused head": ordinary_fused,
    "ordinary, fused head, recomputed": ordinary_recomputed,
    "ordinary, compiled": ordinary_compiled,
    "ordinary, CUDA graphs": lambda subject: _on_cuda(subject, ordinary_compiled),
    "ordinary, all compiled": ordinary_all_compiled,
    "Doppel": doppel,
    "Doppel, with noise": doppel_noise,
    "Doppel, fused head": doppel_fused,
    "Doppel, fused head, recomputed": doppel_recomputed,
    "Doppel, compiled": doppel_compiled,
    "Doppel, CUDA graphs": lambda subject: _on_cuda(subject, doppel_compiled),
    "Doppel, materialize": doppel_materialize,
    "Opacus hooks": lambda subject: opacus_step(subject, "hooks"),
    "Opacus functorch": lambda subject: opacus_step(subject, "functorch"),
    "Opacus expanded weights": lambda subject: opacus_step(subject, "ew"),
    "Opacus fast gradient clipping": lambda subject: opacus_step(subject, "fast"),
    "Opacus ghost clipping": lambda subject: opacus_step(subject, "ghost"),
}

#: (tied, Conv1D replaced by Linear), best first: a way that fails with the first is tried with the next.
AS_GPT2 = ((True, False),)
FOR_OPACUS = ((True, True), (False, True))


def structures(way: str) -> tuple[tuple[bool, bool], ...]:
    """The models that a way of training is tried with, in turn."""
    return FOR_OPACUS if way.startswith("Opacus") else AS_GPT2


def owns_model(way: str) -> bool:
    """Whether a way of training changes the model, so that no other may share it."""
    return way.startswith("Opacus") or way in ("Doppel, materialize", "Doppel, compiled", "Doppel, CUDA graphs")

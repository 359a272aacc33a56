"""Ways to train one GPT-2, ordinary, Doppel's, Opacus's and Opake's, each as a function that makes one full step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._opacus import opacus_step
from benchmarks._opake import opake_step
from benchmarks._subject import LOSS_SCALE, MAX_GRAD_NORM, NOISE_MULTIPLIER, Step, Subject
from doppel.gradients import GradientReducer
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import noisy_mean


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


def ordinary_head_loss(subject: Subject) -> Step:
    """With the loss of the product, :class:`~doppel.privacy.clipping.head.HeadLoss`."""
    return ordinary_step(subject, subject.head_losses)


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
    trained = [parameter for parameter in subject.model.parameters() if parameter.requires_grad]
    reducer = None if noise is None else GradientReducer(trained)
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        (optimizer.zero_grad if reducer is None else reducer.zero)()
        for input_ids in subject.micro_batches:
            with clipper.capture(setting.rows):
                with setting.autocast():
                    loss = losses(input_ids).sum()
                (loss * scale).backward()
            clipper.accumulate(loss_scale=scale)
        if noise is not None:
            noisy_mean(trained, noise, setting.rows, num_steps, reducer)
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


def doppel_head_loss(subject: Subject) -> Step:
    """With the loss of the product."""
    return doppel_step(subject, subject.head_losses, PerSampleClipper(subject.model, MAX_GRAD_NORM))


# ------------------------------------------------------------------------------------------------ names
WAYS: dict[str, Callable[[Subject], Step]] = {
    "Hugging Face eager": hugging_face,
    "ordinary": ordinary,
    "ordinary, HeadLoss": ordinary_head_loss,
    "Doppel": doppel,
    "Doppel, with noise": doppel_noise,
    "Doppel, HeadLoss": doppel_head_loss,
    "Opacus hooks": lambda subject: opacus_step(subject, "hooks"),
    "Opacus functorch": lambda subject: opacus_step(subject, "functorch"),
    "Opacus expanded weights": lambda subject: opacus_step(subject, "ew"),
    "Opacus fast gradient clipping": lambda subject: opacus_step(subject, "fast"),
    "Opacus ghost clipping": lambda subject: opacus_step(subject, "ghost"),
    "Opake": lambda subject: opake_step(subject, 1),
    "Opake, in four chunks": lambda subject: opake_step(subject, 4),
}

#: (tied, Conv1D replaced by Linear), best first: a way that fails with the first is tried with the next.
AS_GPT2 = ((True, False),)
FOR_OPACUS = ((True, True), (False, True))


def structures(way: str) -> tuple[tuple[bool, bool], ...]:
    """The models that a way of training is tried with, in turn."""
    return FOR_OPACUS if way.startswith("Opacus") else AS_GPT2


def owns_model(way: str) -> bool:
    """Whether a way of training changes the model, so that no other may share it."""
    return way.startswith(("Opacus", "Opake"))

"""Opake's way to train, as a function that makes one full step."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks._harness import UnavailableError
from benchmarks._subject import MAX_GRAD_NORM, Step, Subject, plain_losses


def opake_step(subject: Subject, num_chunks: int) -> Step:
    """Opake's own clipping, ``vmap`` over the rows, with the same losses and the same AdamW; its noise is left out.

    Args:
        subject: A model of its own: Opake patches its forward pass.
        num_chunks: Parts of a micro-batch, one after the other; Opake's default is 1.

    Raises:
        UnavailableError: It is not installed, or the precision is fp16.
    """
    try:
        from opake.dpsgd.clipping import clipped_grad
        from opake.functional import make_functional
        from opake.patches import apply_model_patches
    except ImportError as error:
        raise UnavailableError("not installed: pip install opake==0.16.1") from error
    setting = subject.setting
    if setting.precision == "fp16":
        raise UnavailableError("Opake takes no loss scale out of its norms")
    apply_model_patches(subject.model)
    forward, trained, frozen = make_functional(subject.model, partition_trainable=True)

    def loss(parameters: dict[str, Tensor], ids_T: Tensor) -> Tensor:
        position_ids = torch.arange(setting.length, device=setting.device).unsqueeze(0)

        def model(input_ids: Tensor, **kwargs: Tensor) -> Tensor:
            logits: Tensor = forward({**frozen, **parameters}, input_ids=input_ids, **kwargs)
            return logits

        return plain_losses(model, ids_T.unsqueeze(0), position_ids=position_ids)[0]

    chunk = None if num_chunks == 1 else -(-setting.rows // num_chunks)
    gradients_of, state = clipped_grad(loss, clipping_norm=MAX_GRAD_NORM, batch_argnums=1, microbatch_size=chunk)

    def step() -> None:
        nonlocal state
        subject.optimizer.zero_grad()
        for input_ids in subject.micro_batches:
            with setting.autocast():
                clipped, state = gradients_of(trained, input_ids, state=state)
            for name, gradient in clipped.pytree.items():
                parameter = trained[name]
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        subject.optimizer.step()

    return step

"""The loss of a model's output head, and what it is divided by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from doppel.errors import UserError
from doppel.models.frozen_layers import FrozenLinear
from doppel.privacy.clipping.head import HeadLoss, ScaledLogits

#: Logits that a soft cap leaves as they are, and that one turns into itself.
_SMALL, _LARGE = 2.0**-20, 2.0**100


def head_loss(model: PreTrainedModel, divisor: float | None = None) -> HeadLoss | None:
    """Return the loss on top of ``model.base_model``, if the logits are ``f(head(base_model(ids).last_hidden_state))``.

    Some architectures scale their logits or cap them softly. This f is read off one short forward pass, in which
    made-up numbers stand in for what the head gives; no name of a family or setting is needed. None where there is no
    such f without weights: the loss then has to go through the whole model, and hold all logits. Of a model without
    weights, of the device ``meta``, only what is above ``base_model`` is run, and what cannot be is taken for no f.
    """
    head = model.get_output_embeddings()
    if type(head) not in (nn.Linear, FrozenLinear) or model.base_model is model:
        return None
    is_shell = model.device.type == "meta"
    device = torch.device("cpu") if is_shell else model.device
    made = torch.linspace(-100, 100, 2 * head.out_features, dtype=torch.float64, device=device).view(1, 2, -1)
    made[0, 0, 0], made[0, 0, 1] = _SMALL, _LARGE
    try:
        with _left_out(model.base_model, head) if is_shell else nullcontext():
            given, hidden, shown = _shown(model, head, made)
    except (RuntimeError, AttributeError, TypeError):
        if is_shell:
            return HeadLoss(head, divisor)
        raise
    small, large = shown[0, 0, :2].tolist()
    function = ScaledLogits(round(small / _SMALL, 12), large if large < _LARGE**0.5 else None)
    is_head = given is not None and shown.shape == made.shape
    is_head = is_head and (is_shell or torch.allclose(given, hidden, rtol=1e-5, atol=1e-6))  # type: ignore[arg-type]
    is_known = not shown.requires_grad and torch.allclose(shown.double(), function(made), rtol=1e-5, atol=1e-6)
    if not (is_head and is_known):
        return None
    return HeadLoss(head, divisor, None if function == ScaledLogits() else function)


def _shown(model: PreTrainedModel, head: nn.Linear, made: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """What the head is given, if it is called once; hidden states; and the logits that made-up ones become."""
    seen: list[Tensor] = []

    def replace(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(args[0])
        return made

    ids = torch.arange(2, device=model.device).unsqueeze(0)
    was_training, hook = model.training, head.register_forward_hook(replace)
    model.eval()
    try:
        shown = model(input_ids=ids, use_cache=False).logits
        with torch.no_grad():
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        hook.remove()
        model.train(was_training)
    return seen[0] if len(seen) == 1 else None, hidden, shown


@contextmanager
def _left_out(trunk: nn.Module, head: nn.Linear) -> Iterator[None]:
    """A block in which a model has hidden states without computing them."""
    hidden = torch.empty(1, 2, head.in_features, dtype=head.weight.dtype, device="meta")
    found = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden)
    found.router_logits = None  # of a mixture
    trunk.forward = lambda *args, **kwargs: found  # type: ignore[method-assign]
    try:
        yield
    finally:
        del trunk.forward


def checked_divisor(divisor: float | None) -> float | None:
    """Return what the sum of a row's token losses is divided by; None for the row's own number of tokens.

    Raises:
        UserError: It is not above 0.
    """
    if divisor is not None and not divisor > 0:
        raise UserError(f"loss_divisor is {divisor}: give a number above 0, or null for the mean over a row")
    return divisor

"""How a training computes attention, and activations that are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel, masking_utils

from doppel.models.faults import ModelError

#: Texts of at most so many tokens are short to the CPU's attention.
_SHORT = 512


def attention_for(device: torch.device, longest: int) -> AbstractContextManager[None]:
    """Return the context in which a training computes attention.

    On a CPU in half precision torch's fused kernel takes longer than plain products where rows are short, and cuts them
    by the longest one beside. So short texts have plain products, whose rounding is a row's own. Elsewhere the choice
    is torch's.

    Formal guarantees:
        What decides is public: the device, the precision and the longest text that the model takes. The longest row of
        a batch would not be: one unit more would choose the kernel of the others, and move each in its rounding.

    Args:
        device: Where it is computed.
        longest: Tokens of the longest text that the model takes, whatever the batch holds.
    """
    is_short = device.type == "cpu" and torch.is_autocast_enabled("cpu") and longest <= _SHORT
    return sdpa_kernel(SDPBackend.MATH) if is_short and torch.is_grad_enabled() else nullcontext()


def leave_padding_alone(model: PreTrainedModel) -> None:
    """Keep a model from looking for padding in its input: padding is on the right, where causal attention never looks.

    transformers warns where it finds some, by the ids of a private batch, and makes a GPU wait for the answer.
    """
    for part in model.modules():
        if hasattr(part, "warn_if_padding_and_no_attention_mask"):
            part.warn_if_padding_and_no_attention_mask = _say_nothing  # type: ignore[assignment]


def checkpoint_activations(model: PreTrainedModel, longest: int, device: torch.device | None = None) -> None:
    """Let a model compute the activations inside its blocks again in the backward pass of training.

    :func:`attention_for` holds for what is computed again too.

    Args:
        model: The model.
        longest: As of :func:`attention_for`.
        device: Where it is computed; None: where its weights are.

    Raises:
        ModelError: Its architecture has no such blocks.
    """
    # the second is its name in older releases of transformers
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), attention_for(device or model.device, longest)

    try:
        enable({"use_reentrant": False, "context_fn": contexts, "preserve_rng_state": _draws(model)})
    except ValueError as error:
        raise ModelError(
            f"{type(model).__name__} cannot checkpoint its activations: set activation_checkpointing to false"
        ) from error
    model.disable_input_require_grads()  # reentrant checkpoints alone need it


def is_checkpointed(model: PreTrainedModel) -> bool:
    """Return whether :func:`checkpoint_activations` holds for a model."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@contextmanager
def whole_rows() -> Iterator[None]:
    """Let transformers take each row for one text within this block, as ours are.

    It looks at the positions of each batch for several texts in one row. A GPU has to be waited for to say that there
    are none; and under a CUDA graph, where it cannot be, transformers attends by a mask of texts in place of the causal
    kernel, whose sums in half precision are other ones.
    """
    before = getattr(masking_utils, "find_packed_sequence_indices", None)  # not in every release
    if before is None:
        yield
        return
    masking_utils.find_packed_sequence_indices = _say_nothing  # type: ignore[assignment]
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before


def _say_nothing(*tensors: object) -> None:
    pass


def _draws(model: PreTrainedModel) -> bool:
    """Whether a layer has dropout. Where none has, no generator is asked for its state, which a CUDA graph forbids."""
    return any(
        value
        for part in model.modules()
        for key, value in vars(part).items()
        if type(value) is float and ("drop" in key or (key == "p" and isinstance(part, nn.modules.dropout._DropoutNd)))
    )

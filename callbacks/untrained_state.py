"""What leaves with the weights and has no noise: it must stay what it was before the first private batch."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.private_step import PrivateTrainingError


class UntrainedState:
    """Everything in a module's ``state_dict`` but its trained parameters: persistent buffers, frozen parameters, extra
    state.

    Formal guarantees:
        Noise is added to gradients, so it covers the trained parameters and what an optimiser makes of their noisy
        gradients. Whatever else a checkpoint holds of the module leaves as it is. If it equals what it was before the
        first private batch was fetched, it is no function of private data. Equality is all that is asked for: a counter
        of steps, though public, is refused too, for nothing tells it from a counter of rows. A buffer with
        ``persistent=False`` is in no checkpoint.

        Between comparisons by value (SHA-256, kept in memory alone) each step compares what PyTorch counts: the number
        of writes to each tensor, and whether it is the same tensor. Writes through ``.data`` are not counted, and are
        seen by value.

        A trained parameter is written to by its optimiser alone: what a step writes there besides, such as a mean of
        its rows, would leave neither clipped nor noised. Counted writes between :meth:`begin_step` and the optimiser
        are refused likewise. Those through ``.data``, and those of hooks between two steps, are not noticed.

    Args:
        module: With the weights that the training starts from.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._trained = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        self._seen = self._rest(module.state_dict(keep_vars=True))
        self._writes = {name: _writes(value) for name, value in self._seen.items()}
        self._start = {name: _fingerprint(value) for name, value in self._seen.items()}
        self._before: dict[str, int] = {}

    def begin_step(self) -> None:
        """Note how often the trained parameters have been written to."""
        self._before = self._writes_to_trained()

    def refuse_write(self, what: str) -> None:
        """Refuse a write to a trained parameter since :meth:`begin_step`.

        Args:
            what: What may have written, for the message.

        Raises:
            PrivateTrainingError: There was one.
        """
        found = self._writes_to_trained()
        for name in sorted(name for name, number in found.items() if number != self._before.get(name)):
            raise PrivateTrainingError(
                f"{what} writes to the trained parameter '{name}', which its optimiser alone may do: what is written "
                "there would leave with the weights, neither clipped nor noised",
                about=type(self._module).__name__,
            )

    def refuse_strangers(self, optimizer: Optimizer) -> None:
        """Refuse an optimiser that trains what is no trained parameter of the module.

        Such a weight is neither clipped nor noised, and the optimiser's state, which is in a checkpoint, would hold its
        gradient.

        Raises:
            PrivateTrainingError: It does.
        """
        own = {id(parameter) for parameter in self._trained.values()}
        if any(id(p) not in own and p.requires_grad for group in optimizer.param_groups for p in group["params"]):
            raise PrivateTrainingError(
                "its optimiser trains a tensor that is no parameter of the module, so that it would be neither clipped "
                "nor noised: register it as a parameter of a layer that has a clipping rule, or leave it out",
                about=type(self._module).__name__,
            )

    def refuse_change(self, what: str, by_value: bool) -> None:
        """Compare the module with the start.

        Args:
            what: What may have changed it, for the message.
            by_value: Whether to compare values that no counted write has touched, too.

        Raises:
            PrivateTrainingError: Something is not as it was.
        """
        found = self._rest(self._module.state_dict(keep_vars=True))
        writes = {name: _writes(value) for name, value in found.items()}
        touched = {
            name: value
            for name, value in found.items()
            if by_value
            or writes[name] is None
            or value is not self._seen.get(name)
            or writes[name] != self._writes[name]
        }
        self._refuse(what, found.keys() ^ self._start.keys(), touched)
        self._seen, self._writes = found, writes

    def refuse_changed(self, state_dict: Mapping[str, Any]) -> None:
        """Compare a checkpoint's ``state_dict``, by value, before it is written.

        Raises:
            PrivateTrainingError: Something is not as it was.
        """
        found = self._rest(state_dict)
        self._refuse("the training", found.keys() ^ self._start.keys(), found)

    def _writes_to_trained(self) -> dict[str, int]:
        return {name: parameter._version for name, parameter in self._trained.items()}

    def _rest(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state_dict.items() if name not in self._trained}

    def _refuse(self, what: str, unmatched: set[str], values: Mapping[str, Any]) -> None:
        changed = {name for name, value in values.items() if _fingerprint(value) != self._start.get(name)}
        for name in sorted(changed | unmatched):
            raise PrivateTrainingError(
                f"{what} changes {self._kind(name)} '{name}', which is in the state_dict, so that it would leave with "
                "the weights, without noise: register a buffer with persistent=False, keep a count in a plain "
                "attribute, and write to no frozen parameter",
                about=type(self._module).__name__,
            )

    def _kind(self, name: str) -> str:
        if name in dict(self._module.named_buffers(remove_duplicate=False)):
            return "the buffer"
        is_parameter = name in dict(self._module.named_parameters(remove_duplicate=False))
        return "the frozen parameter" if is_parameter else "the entry"


def _writes(value: Any) -> int | None:
    """How often a tensor was written to; None where nobody counts."""
    return None if not isinstance(value, Tensor) or value.is_inference() else value._version


def _fingerprint(value: Any) -> str:
    if isinstance(value, Tensor):
        return weights_fingerprint({"": value})
    return hashlib.sha256(pickle.dumps(value)).hexdigest()

"""What leaves with the weights and has no noise: it must stay what it was before the first private batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.logical_batch_module import LogicalBatchModule


class UntrainedState:
    """All that a module keeps but its trained parameters: buffers, frozen parameters, extra state.

    Formal guarantees:
        Noise is added to gradients, so it covers the trained parameters and what an optimiser makes of their noisy
        gradients. Whatever else a checkpoint holds of the module leaves as it is. If its values (compared by SHA-256,
        kept in memory alone) equal those before the first private batch was fetched, it is no function of private data.
        The weights of a frozen base are in no checkpoint (``LogicalBatchModule.left_out``), and large: they are hashed
        at the start and at the end of a fit, and between the two where PyTorch's counter of writes, or the address,
        tells that one was written to or replaced.
        Equality is all that is asked for: a counter of steps, though public, is refused too, for nothing tells it from
        a counter of rows. A buffer with ``persistent=False`` is in no checkpoint, but through one that a pass changes,
        such as a running maximum, rows move the gradients of later ones by more than C: it must stay as well.

        A trained parameter is written to by its optimiser alone: what a step writes there besides, such as a mean of
        its rows, would leave neither clipped nor noised. Up to the first optimiser step these are compared too; a
        module that begins to do so in a later step is not noticed.

    Args:
        module: With the weights that the training starts from.

    Raises:
        UserError: Its ``state_dict`` holds what no fingerprint can tell from another.
    """

    def __init__(self, module: LogicalBatchModule) -> None:
        self._module = module
        self._trained = {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
        known = module.fingerprints()
        values = self._kept(module.state_dict())
        self._marks = {name: _mark(values[name]) for name in known.keys() & module.left_out()}
        self._start = {**known} | _fingerprints({name: value for name, value in values.items() if name not in known})

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

    def refuse_change(
        self,
        what: str,
        state_dict: Mapping[str, Any] | None = None,
        trained_too: bool = False,
        is_end: bool = False,
    ) -> None:
        """Compare with the start, by value.

        Args:
            what: What may have changed it, for the message.
            state_dict: That of a checkpoint, before it is written; None for the module's.
            trained_too: Whether no optimiser step was taken yet, so that trained parameters are as they were as well.
            is_end: Whether the training is over, so that a frozen base is hashed again, whatever tells that it was not
                written to.

        Raises:
            PrivateTrainingError: Something is not as it was.
        """
        values = self._kept(self._module.state_dict() if state_dict is None else state_dict)
        marks = {} if is_end else self._marks
        left_out = {name for name, mark in marks.items() if name in values and _mark(values[name]) == mark}
        left_out |= set() if trained_too else self._trained.keys()
        found = _fingerprints({name: value for name, value in values.items() if name not in left_out})
        start = {name: value for name, value in self._start.items() if name not in left_out}
        for name in sorted(name for name in start.keys() | found.keys() if start.get(name) != found.get(name)):
            raise PrivateTrainingError(
                f"{what} changes {self._kind(name)} '{name}', which leaves with the weights, or by which rows move the "
                "gradients of later ones, without noise: write to no buffer and no parameter, and keep a count in a "
                "plain attribute that losses() does not read",
                about=type(self._module).__name__,
            )

    def _kept(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(self._module.named_buffers(remove_duplicate=False)), **state_dict}

    def _kind(self, name: str) -> str:
        if name in self._trained:
            return "the trained parameter"
        if name in dict(self._module.named_buffers(remove_duplicate=False)):
            return "the buffer"
        is_parameter = name in dict(self._module.named_parameters(remove_duplicate=False))
        return "the frozen parameter" if is_parameter else "the entry"


def _mark(value: Tensor) -> tuple[int, int]:
    """What a write by PyTorch, or another tensor in its place, changes."""
    return value._version, value.data_ptr()


def _fingerprints(state_dict: Mapping[str, Any]) -> dict[str, str]:
    return {name: weights_fingerprint({"": value}) for name, value in state_dict.items()}

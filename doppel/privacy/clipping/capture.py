"""What one capture sees: which layers take part, and what their norms and clipped sums are formed from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.groups import Constants, FormedGradients, Grams, LayerInput
from doppel.privacy.clipping.rule import HookedRule, LayerRule, UnsupportedLayerError

if TYPE_CHECKING:
    from doppel.privacy.clipping.linear import LinearRule
    from doppel.privacy.clipping.observed import HeldWeights


class Capture:
    """The state of one capture; a new object for each, so that what was given up is not heard in the next.

    Args:
        num_units: Units U in the micro-batch: unit 0's rows, then unit 1's, …
        rows_per_unit: Rows of every unit; they are clipped together.
        planned: How many parameters of each shape may be formed side by side, and by None how many Gram matrices.
        constants: Index tensors of earlier captures.
        weights: Of layers that multiply.
        start: A number that requires a gradient: leaf of the graph where an input does not.
    """

    def __init__(
        self,
        num_units: int,
        rows_per_unit: int,
        planned: Counter[torch.Size | None],
        constants: Constants,
        weights: HeldWeights,
        start: Tensor,
    ) -> None:
        self.num_units, self.num_rows = num_units, num_units * rows_per_unit
        self.start, self.weights = start, weights
        self.is_open = True
        self.started: set[LayerRule] = set()
        self.without_grad: set[LayerRule] = set()
        self.formed: dict[object, FormedGradients] = {}
        self.grams: dict[object, Grams] = {}
        self.inputs: list[LayerInput] = []
        self.hooked: list[HookedRule] = []
        self._observed: set[LayerRule] = set()
        self._planned, self._constants = planned, constants
        self._last: tuple[Tensor, int, Tensor, LayerInput] | None = None

    # -------------------------------------------------------------------------------- forward
    def begin(self, rule: LayerRule) -> None:
        """Note that a module takes part.

        Raises:
            UnsupportedLayerError: It does so already. Two calls have one gradient, whose norm is not that of either.
        """
        if rule in self.started:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) was called twice in one capture, and a layer's "
                "rule gives the gradient of one call: run one forward and one backward per capture, use a module of "
                "its own for each call, or freeze it"
            )
        self.started.add(rule)
        if isinstance(rule, HookedRule):
            self.hooked.append(rule)

    def read(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, LayerInput]:
        """Return an input in the dtype of its product, and its record: the same for all that read it in a row."""
        last = self._last
        if last is None or last[0] is not x or last[1] != x._version or last[2].dtype is not dtype:
            last = self._last = x, x._version, x.to(dtype), LayerInput()
        return last[2], last[3]

    def end_forward(self) -> None:
        """Let go of what only a forward pass needs."""
        self._last = None

    # -------------------------------------------------------------------------------- backward
    def note_gradient(self, rule: LayerRule) -> None:
        """Note that a layer's output gradient has come.

        Raises:
            UnsupportedLayerError: It is the second in one capture.
        """
        if rule in self._observed:
            raise UnsupportedLayerError(
                f"module '{rule.name}' ({type(rule.module).__name__}) got its output gradient twice in one capture: "
                "call backward once per capture"
            )
        self._observed.add(rule)

    def split(self, x: Tensor) -> Tensor:
        """Return [rows, …, f] → [U, n, f], all positions of all rows of a unit side by side."""
        return x if x.dim() == 3 and len(x) == self.num_units else x.reshape(self.num_units, -1, x.shape[-1])

    def place(self, parameter: nn.Parameter, like: Tensor, has_room: bool = True) -> Tensor:
        """Return where the units' gradients of a parameter are written to: [U, \\*shape], wide.

        Args:
            parameter: Whose gradients they are.
            like: What they are formed from.
            has_room: Whether the room for rounding of a formed vector is that of :func:`.arithmetic.formed_norm`.
        """
        dtype = wide_dtype(like.dtype)
        key = parameter.shape, dtype, has_room
        if key not in self.formed:
            num = self._planned[parameter.shape]
            self.formed[key] = FormedGradients(parameter.shape, num, self.num_units, dtype, has_room)
        return self.formed[key].place(parameter, like)

    def keep(self, rule: LinearRule, shared: LayerInput, G: Tensor, flat_G: Tensor) -> None:
        """Keep the factors of a weight's gradient, and form their Gram matrices."""
        self._grams_of(G).add(shared, G)
        if not shared.readers:
            self.inputs.append(shared)
        shared.readers.append((rule, G, flat_G))

    def reach(self, A: Tensor, G: Tensor) -> None:
        """Note how far positions reach of a layer whose gradient is formed in the place of its Gram matrices."""
        self._grams_of(G).add_reach(A, G)

    def _grams_of(self, G: Tensor) -> Grams:
        key = G.shape[1], G.dtype
        if key not in self.grams:
            self.grams[key] = Grams(G.shape[1], self._planned[None], self.num_units, G, self._constants)
        return self.grams[key]

    # -------------------------------------------------------------------------------- the end
    @property
    def num_bytes(self) -> int:
        """What is held until the norms are known: units' gradients, and factors of them."""
        tensors = {id(x): x for shared in self.inputs for x in (shared.A, *(G for _, G, _ in shared.readers))}
        tensors |= {id(x): x for rule in self.hooked for x in rule.kept.values()}
        return sum(x.nbytes for x in tensors.values() if x is not None) + sum(
            group.num_bytes for group in self.formed.values()
        )

    def close(self) -> None:
        """Free everything."""
        self.is_open = False
        for rule in self.hooked:
            rule.reset()
        self.formed, self.grams, self.inputs, self.hooked, self._last = {}, {}, [], [], None

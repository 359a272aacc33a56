"""What a layer rule is: how one module's per-unit gradient norm and clipped gradient are formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.errors import UnsupportedLayerError


@dataclass(frozen=True)
class UnitLayout:
    """How the rows of a micro-batch belong to units: unit 0's rows, then unit 1's, …

    Args:
        num_units: Number of units U in the micro-batch.
        rows_per_unit: Rows of every unit; they are clipped together.
    """

    num_units: int
    rows_per_unit: int

    @property
    def num_rows(self) -> int:
        """Rows of the micro-batch."""
        return self.num_units * self.rows_per_unit

    def split(self, x: Tensor, num_features: int) -> Tensor:
        """[rows, …, f] → [U, n, f], all positions of all rows of a unit side by side."""
        return x.reshape(self.num_units, -1, num_features)


class LayerRule(ABC):
    """The rule of one module, with what it holds between the forward pass and the clipped sum.

    A rule is used once per micro-batch, in this order: :meth:`prepare_output` and :meth:`record` in the
    forward pass, :meth:`observe` in the backward pass, then (norms known) :meth:`add_clipped` and
    :meth:`reset`.

    Args:
        name: The module's name in the model, for messages.
        module: The module. Each of its parameters may be trainable or frozen.
    """

    parameter_names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = getattr(module, "bias", None)
        self.trains_weight = self.weight is not None and self.weight.requires_grad
        self.trains_bias = self.bias is not None and self.bias.requires_grad
        self.reset()

    @classmethod
    @abstractmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether this rule is exact for ``module``."""

    def reset(self) -> None:
        """Forget the micro-batch and free its buffers."""
        self.squared_norms: Tensor | None = None
        self.operand_dtype: torch.dtype = torch.float32
        self.is_recorded = False
        self.ran_without_grad = False
        self._layout = UnitLayout(1, 1)
        self._inputs: Tensor | None = None
        self._inputs_version = 0
        self._grads: Tensor | None = None

    # -------------------------------------------------------------------------------- forward
    def prepare_output(self, output: Tensor, layout: UnitLayout) -> Tensor:
        """The output that the model goes on with: one whose gradient can be observed.

        With the parameters out of autograd, the outputs of the first trainable layers become the leaves of
        the graph.
        """
        if output.dim() < 2 or output.shape[0] != layout.num_rows:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of shape "
                f"{tuple(output.shape)}, but "
                f"its first dimension must be the {layout.num_rows} rows of the micro-batch: keep the batch "
                "dimension "
                "first, or freeze the module"
            )
        return output if output.requires_grad else output.detach().requires_grad_(True)

    def record(self, inputs: Tensor, layout: UnitLayout) -> None:
        """Keep the module's input; it is the right factor of the weight gradient."""
        self.is_recorded = True
        self._layout = layout
        self._inputs = inputs.detach()
        self._inputs_version = self._inputs._version

    # -------------------------------------------------------------------------------- backward
    def observe(self, grads: Tensor) -> None:
        """Take the gradient of the module's output [rows, …] and form :attr:`squared_norms` [U]."""
        if self.squared_norms is not None:
            raise UnsupportedLayerError(
                f"module '{self.name}' got its output gradient twice in one capture: call backward once per capture"
            )
        if self._inputs is None:
            return  # the capture was given up
        if self._inputs._version != self._inputs_version:
            raise UnsupportedLayerError(
                f"the input of module '{self.name}' was changed in place after its forward pass: use the "
                "out-of-place "
                "operation, or freeze the module"
            )
        self.operand_dtype = grads.dtype
        self.squared_norms = self._squared_norms(self._inputs, grads.detach(), self._layout)

    @abstractmethod
    def _squared_norms(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> Tensor:
        """Squared norms [U] of the units' gradients of what is trained here; keeps what is needed next."""

    # -------------------------------------------------------------------------------- clipped sum
    @abstractmethod
    def erase(self, units: Tensor) -> None:
        """Make the ``units`` marked true contribute exactly zero, even where they hold inf or nan."""

    @abstractmethod
    def add_clipped(self, factors: Tensor, scale: float) -> None:
        """``parameter.grad += scale · Σᵢ factorsᵢ gᵢ`` for each trainable parameter of the module."""

"""The rule of any layer: its per-sample gradients themselves, as Opacus forms them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from doppel.head_loss import HeadGradients
from doppel.privacy.clipping.arithmetic import add_to_grad, batched_matmul, squared_norm, wide_dtype
from doppel.privacy.clipping.embedding import check_embedding, expand_rows
from doppel.privacy.clipping.errors import UnsupportedLayerError
from doppel.privacy.clipping.grad_samplers import ModuleCall, find_grad_sampler, replayed_gradients, sampled_gradients
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, called_twice_error


class MaterializeRule(LayerRule):
    """Forms the gradients [U, *shape] of a module's own parameters for every unit.

    Layers that Opacus has a grad sampler for are given to it; any other module is run again row by row under
    ``torch.func.vmap``, with the derivative with respect to its own parameters (those of its children have rules of
    their own). No formula of ours is involved, which makes this mode the reference for the others.

    Memory: U copies of every parameter from the backward pass to the clipped sum, and one per row while they form.

    Args:
        name: The module's name in the model, for messages.
        module: The module; it owns at least one trained parameter.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        if isinstance(module, nn.Embedding):
            check_embedding(name, module)
        self._grad_sampler = find_grad_sampler(module)
        own = module.named_parameters(recurse=False, remove_duplicate=self._grad_sampler is not None)
        #: Trained parameters by name; one that has two names here is used twice.
        self.parameters = {key: p for key, p in own if p.requires_grad}
        #: Parameters that other modules use as well; their norm is formed when all uses are known.
        self.shared: set[int] = set()
        self.reset()

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Any module; what cannot be run row by row is refused when it is called."""
        return True

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        return list(self.parameters.values())

    @property
    def is_head(self) -> bool:
        """Whether a :class:`~doppel.head_loss.HeadLoss` may use the module."""
        return type(self.module) is nn.Linear

    def reset(self) -> None:
        super().reset()
        self._call: ModuleCall | None = None
        self._others: tuple[Tensor, ...] = ()

    # -------------------------------------------------------------------------------- forward
    def expand_output(self, output: Tensor, layout: UnitLayout) -> Tensor:
        if not isinstance(output, Tensor):
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) has trainable parameters of its own and returns "
                f"a {type(output).__name__}, where its output gradient cannot be seen: return one tensor, or freeze it"
            )
        if isinstance(self.module, nn.Embedding):
            output = expand_rows(self.name, output, layout)
        return super().expand_output(output, layout)

    def tensors_to_save(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> list[Tensor]:
        """All tensors among the arguments and, where the module is run again, its output to compare with."""
        if self._grad_sampler is not None:
            return super().tensors_to_save(args, kwargs, output)
        call, tensors = ModuleCall.of(args, kwargs)
        if not tensors:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) was called without a tensor, so there are no "
                "rows to run it on one by one: give it the rows, or freeze it"
            )
        if self._call is None:  # else a checkpoint makes the same call again
            self._call = call
        return [*tensors, output]

    # -------------------------------------------------------------------------------- backward
    def observe(self, inputs: Tensor, grads: Tensor, *others: Tensor) -> None:
        self._others = others
        super().observe(inputs, grads)
        self._others = ()

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        if self._grad_sampler is not None:
            rows = sampled_gradients(self._grad_sampler, self.module, self.parameters, inputs, grads)
        else:
            assert self._call is not None
            *others, output = self._others
            rows = replayed_gradients(
                self.name, self.module, self.parameters, self._call, [inputs, *others], output, grads
            )
        return self.summarise_rows(rows, layout)

    def summarise_rows(self, rows: dict[str, Tensor], layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        """Squared norms [U] and gradients [U, *shape] of the units, from gradients [rows, *shape]."""
        kept = {}
        for key, value in rows.items():
            units = value.view(layout.num_units, layout.rows_per_unit, *value.shape[1:])
            kept[key] = units.sum(1, dtype=wide_dtype(value.dtype))
        first = next(iter(kept.values()))
        squared = first.new_zeros(layout.num_units)
        for key, value in kept.items():
            if id(self.parameters[key]) not in self.shared:
                squared += squared_norm(value)
        return squared, kept

    def start_fused_head(self, layout: UnitLayout, ids: Tensor | None) -> MaterializedHead:
        """A :class:`~doppel.head_loss.HeadLoss` uses this layer, whose forward is then never called."""
        if self.is_recorded:
            raise called_twice_error(self)
        self.is_recorded = True
        self.layout = layout
        return MaterializedHead(self)

    # -------------------------------------------------------------------------------- clipped sum
    def add_clipped(self, factors: Tensor, scale: float) -> None:
        for key, grads in self.kept.items():
            add_to_grad(self.parameters[key], factors.to(grads.dtype) @ grads.flatten(1), scale)


class MaterializedHead:
    """Forms a fused head's weight gradient of every row, chunk by chunk.

    Args:
        rule: The head's rule, which takes the gradients over.
    """

    def __init__(self, rule: MaterializeRule) -> None:
        self.rows_per_unit = rule.layout.rows_per_unit
        self._rule = rule
        self._gradients: HeadGradients | None = None
        self._chunks: dict[str, list[Tensor]] = {key: [] for key in rule.parameters}

    def watch(self, gradients: HeadGradients) -> None:
        """Take hold of the micro-batch."""
        num_rows = self._rule.layout.num_rows
        if len(gradients.labels) != num_rows:
            raise UnsupportedLayerError(
                f"the head's loss was given {len(gradients.labels)} rows, but the capture has {num_rows}: give one row "
                "of hidden states and labels for each row of the micro-batch"
            )
        self._gradients = gradients

    def see_chunk(self, rows: slice, grads: Tensor) -> None:
        """Form the gradients of the chunk's losses."""
        assert self._gradients is not None
        weights = self._gradients.position_weights[rows]
        for key, chunks in self._chunks.items():
            if key == "weight":
                hidden = self._gradients.weighted_hidden(rows, weights)
                chunks.append(batched_matmul(grads.transpose(1, 2), hidden))
            else:
                chunks.append((grads.to(weights.dtype) * weights.unsqueeze(-1)).sum(1))

    def finish(self, upstream: Tensor) -> None:
        """The upstream gradients [rows] are known."""
        assert self._gradients is not None
        rows = {}
        for key, chunks in self._chunks.items():
            grads = torch.cat(chunks)
            chunks.clear()
            rows[key] = grads * upstream.to(grads.dtype).view(-1, *[1] * (grads.dim() - 1))
        self._rule.operand_dtype = self._gradients.dtype
        self._rule.squared_norms, self._rule.kept = self._rule.summarise_rows(rows, self._rule.layout)
        self._gradients = None

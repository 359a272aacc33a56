"""Activation checkpointing that also forgets the book-keeping of the layers inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from doppel.privacy.clipping.rule import LayerRule

Run = Callable[..., Any]


class Segment:
    """A part of the model that keeps only its input and, after the backward pass, its output gradient.

    Book-keeping holds the inputs and the output gradients of all layers until the norms are known, which is what
    checkpointing is meant to avoid. So a segment is run three times: forward without a graph; in the backward pass
    again, with the layers observed for their norms and then forgotten; and, when the clip factors are known, once
    more with its output gradient scaled by them, where autograd forms the clipped weight gradients. Backward is linear
    in the output gradient, row by row, so this is Σᵢ cᵢgᵢ.

    The norms belong to the gradients that are summed only if all runs compute the same function: the random state
    (dropout) and the autocast state of the first run are set again in the later ones.

    Args:
        run: Computes the segment's output from ``args``.
        args: Its arguments; tensors among them that require gradients get one.
    """

    def __init__(self, run: Run, args: Sequence[Any]) -> None:
        self._run = run
        self._device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
        self._args: list[Any] = [a.detach() if isinstance(a, Tensor) else a for a in args]
        # masks and position embeddings are not the rows' own, even where their first dimension happens to be as long
        self._of_rows = [i for i, a in enumerate(args) if isinstance(a, Tensor) and (a.requires_grad or i == 0)]
        self.differentiable = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
        self._random_state = self._get_random_state()
        self._autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in sorted({"cpu", self._device.type})
        ]
        self._grads: list[Tensor | None] = []
        #: Rules of the layers inside; known after the backward pass.
        self.rules: list[LayerRule] = []

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained in the layers inside, each once."""
        return list({id(p): p for rule in self.rules for p in rule.trained_parameters}.values())

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype in which gradients inside are formed."""
        autocast = [dtype for device, dtype, enabled in self._autocast if enabled and device == self._device.type]
        return autocast[0] if autocast else self._args[self.differentiable[0]].dtype

    @contextmanager
    def _as_first_time(self) -> Iterator[None]:
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.set_rng_state(self._random_state[0])
            if devices:
                torch.cuda.set_rng_state(self._random_state[1], self._device)
            with ExitStack() as stack:
                for device, dtype, enabled in self._autocast:
                    stack.enter_context(torch.autocast(device, dtype, enabled))
                yield

    def _get_random_state(self) -> list[Tensor]:
        state = [torch.get_rng_state()]
        return [*state, torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else state

    def _outputs(self) -> tuple[list[Tensor], list[Any]]:
        """Run with a graph: the differentiable inputs as leaves, and the outputs."""
        args = list(self._args)
        for i in self.differentiable:
            args[i] = args[i].detach().requires_grad_(True)
        with torch.enable_grad(), self._as_first_time():
            outputs = self._run(*args)
        flat = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        return [args[i] for i in self.differentiable], flat

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the differentiable inputs; whoever observes the layers sees their gradients.

        Args:
            grads: Gradient of every output of the segment, None for those that are no tensors.
        """
        inputs, outputs = self._outputs()
        self._grads = [None if g is None else g.detach() for g in grads]
        pairs = [(o, g) for o, g in zip(outputs, self._grads, strict=True) if g is not None and _has_graph(o)]
        found = torch.autograd.grad([o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True)
        return list(found)

    def add_clipped(self, row_factors: Tensor, erased: Tensor | None, scale: float) -> None:
        """``parameter.grad += scale · Σ factorᵣ gᵣ`` over the rows r, for the trained parameters of the layers inside.

        Args:
            row_factors: Clip factor of each row [rows].
            erased: Rows [rows] that must contribute zero whatever they hold, or None.
            scale: Factor of the sum.
        """
        if erased is not None:
            for i in self._of_rows:
                self._args[i] = _erase(self._args[i], erased)
        _, outputs = self._outputs()
        parameters = self.trained_parameters
        scaled = []
        for output, grad in zip(outputs, self._grads, strict=True):
            if grad is not None and _has_graph(output):
                grad = grad if erased is None else _erase(grad, erased)
                factors = row_factors.to(torch.promote_types(grad.dtype, torch.float32))
                scaled.append((output, (grad * factors.view(-1, *[1] * (grad.dim() - 1))).to(grad.dtype)))
        grads = torch.autograd.grad([o for o, _ in scaled], parameters, [g for _, g in scaled], allow_unused=True)
        for parameter, total in zip(parameters, grads, strict=True):
            if total is not None:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.add_(total.to(parameter.grad.dtype), alpha=scale)


def _has_graph(output: Any) -> bool:
    return isinstance(output, Tensor) and output.requires_grad


def _erase(x: Tensor, rows: Tensor) -> Tensor:
    return x.masked_fill(rows.view(-1, *[1] * (x.dim() - 1)), 0)


class RunSegment(torch.autograd.Function):
    """Runs a segment without a graph, and calls back in the backward pass.

    Arguments are what to run, ``on_backward(output gradients)``, which returns the gradients of the differentiable
    inputs, a tensor that requires gradients (so that the backward pass comes here even if no input does), and the
    differentiable inputs.
    """

    @staticmethod
    def forward(
        ctx: Any, run: Callable[[], Any], on_backward: Callable[..., Any], anchor: Tensor, *inputs: Tensor
    ) -> Any:
        ctx.on_backward = on_backward
        ctx.set_materialize_grads(False)
        return run()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.on_backward(grads)

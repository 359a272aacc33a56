"""What private training would do with each layer of a model, and what it costs: asked before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from doppel.privacy.clipping.generic import BLOCK_NUMBERS, GenericRule
from doppel.privacy.clipping.registry import JudgedLayer, judge_layers

FAST, GENERIC, REFUSED = "fast", "generic", "refused"
_TIMES_FAST, _TIMES_LEAF, _TIMES_AROUND = 1.0, 4 / 3, 5 / 3
_NOTE = (
    "work: counted products of the layer, as a multiple of ordinary training; numbers: what a row's gradient takes "
    "while it is formed (0: it is not)."
)


@dataclass(frozen=True)
class LayerCheck:
    """What is done with one layer.

    Attributes:
        name: Its name in the model; empty for the model itself.
        kind: Its class.
        num_trained: Its trainable parameters' numbers.
        rule: ``fast`` (a formula of its own), ``generic`` (``torch.func``, row by row) or ``refused``.
        work: Products of matrices as a multiple of those of ordinary training, counted: 1 for a fast rule; 4/3 where
            the layer is run once more for its weights' gradient; 5/3 of all layers within, where they must be run again
            for the sake of a parameter around them. Twice the addition if a micro-batch has more units than
            ``units_at_once``. A refused layer has 0.
        numbers_per_unit: Numbers of a unit's gradient that are held at once; 0 where none is formed.
        units_at_once: Units whose gradients are held side by side; 0 where none are.
        advice: What a refused layer is to be replaced by, in a sentence that names it; else what makes it cheaper, if
            anything does.
    """

    name: str
    kind: str
    num_trained: int
    rule: str
    work: float
    numbers_per_unit: int
    units_at_once: int
    advice: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """Every layer of a model that is trained or refused; ``print`` shows a table.

    Attributes:
        layers: In the model's order.
    """

    layers: tuple[LayerCheck, ...]

    @property
    def is_trainable(self) -> bool:
        """Whether something is trained and no layer is refused."""
        return any(layer.num_trained for layer in self.layers) and not self.refused

    @property
    def refused(self) -> tuple[LayerCheck, ...]:
        """The layers that must be replaced or frozen."""
        return tuple(layer for layer in self.layers if layer.rule == REFUSED)

    def __iter__(self) -> Iterator[LayerCheck]:
        return iter(self.layers)

    def __str__(self) -> str:
        if not self.layers:
            return "nothing is trainable: unfreeze some parameters (requires_grad=True)"
        rows = [("layer", "kind", "trained", "rule", "work", "numbers a row", "rows at once")]
        rows += [
            (
                layer.name or "(the model itself)",
                layer.kind,
                f"{layer.num_trained:,}",
                layer.rule,
                f"× {layer.work:.2f}" if layer.work else "",
                f"{layer.numbers_per_unit:,}",
                f"{layer.units_at_once:,}" if layer.units_at_once else "",
            )
            for layer in self.layers
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += ["", _NOTE, *(layer.advice for layer in self.layers if layer.advice)]
        if self.refused:
            lines.append(f"{len(self.refused)} of {len(self.layers)} layers are refused: replace or freeze them.")
        else:
            lines.append(
                "Every layer can be clipped. The first step tries the generic ones on what they are given; a layer "
                "that is called twice in one forward pass becomes generic."
            )
        return "\n".join(lines)


def check(model: nn.Module) -> ModelCheck:
    """Say of each layer which rule clips its gradients, at what price, or what must stand in its place.

    Example::

        print(doppel.privacy.check(model))

    It reads the model and changes nothing. Whether a layer of one's own mixes rows, or branches on data, shows when it
    is first called: :meth:`~doppel.privacy.clipping.PerSampleClipper.accumulate` then refuses it by name.

    Args:
        model: Any module, with what is not to be trained frozen.

    Returns:
        The layers. Nothing is raised for one that is refused.
    """
    return ModelCheck(tuple(_check(layer) for layer in judge_layers(model)))


def _check(layer: JudgedLayer) -> LayerCheck:
    parameters = {id(p): p for p in layer.owned.values()}.values()
    num_trained = sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in parameters)
    kind = type(layer.module).__name__
    if layer.refusal is not None or layer.rule is None:
        return LayerCheck(layer.name, kind, num_trained, REFUSED, 0.0, 0, 0, str(layer.refusal))
    if not isinstance(layer.rule, GenericRule):
        return LayerCheck(layer.name, kind, num_trained, FAST, _TIMES_FAST, 0, 0)
    numbers = layer.rule.num_shared_numbers
    around = len(layer.owned) < len(list(layer.module.named_parameters(remove_duplicate=False)))
    advice = (
        f"'{layer.name or kind}' has parameters around other layers, which are run again for them: put them into a "
        "small module of their own, and that is saved."
        if around
        else ""
    )
    work = _TIMES_AROUND if around else _TIMES_LEAF
    return LayerCheck(layer.name, kind, num_trained, GENERIC, work, numbers, max(BLOCK_NUMBERS // numbers, 1), advice)

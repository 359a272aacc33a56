"""What private training would do with each layer of a model: asked before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from doppel.privacy.clipping.functional import FunctionalRule
from doppel.privacy.clipping.registry import judge_layers

FORMULA, FUNCTIONAL, REFUSED = "formula", "torch.func", "refused"


@dataclass(frozen=True)
class LayerCheck:
    """What is done with one layer.

    Attributes:
        name: Its name in the model; empty for the model itself.
        kind: Its class.
        num_trained: Its trainable parameters' numbers.
        rule: ``formula``, ``torch.func`` (the layer is run once more, and each unit's gradient formed) or ``refused``.
        advice: What a refused layer is to be replaced by, in a sentence that names it.
    """

    name: str
    kind: str
    num_trained: int
    rule: str
    advice: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """Every layer of a model that is trained or refused, in the model's order; ``print`` shows a table."""

    layers: tuple[LayerCheck, ...]

    @property
    def is_trainable(self) -> bool:
        """Whether something is trained and no layer is refused."""
        return any(layer.num_trained for layer in self.layers) and all(x.rule != REFUSED for x in self.layers)

    def __str__(self) -> str:
        if not self.layers:
            return "nothing is trainable: unfreeze some parameters (requires_grad=True)"
        rows = [("layer", "kind", "trained", "rule")]
        rows += [(x.name or "(the model itself)", x.kind, f"{x.num_trained:,}", x.rule) for x in self.layers]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(layer.advice for layer in self.layers if layer.advice)])


def check(model: nn.Module) -> ModelCheck:
    """Say of each layer which rule clips its gradients, or what must stand in its place.

    It reads the model and changes nothing. Whether a layer is called twice, mixes rows or branches on data shows when
    it is first called: the clipper then refuses it by name. Freeze what is not to be trained before.
    """
    layers = []
    for layer in judge_layers(model):
        parameters = {id(p): p for p in layer.owned.values()}.values()
        num_trained = sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in parameters)
        rule = FUNCTIONAL if isinstance(layer.rule, FunctionalRule) else FORMULA
        advice = "" if layer.refusal is None else str(layer.refusal)
        kind = type(layer.module).__name__
        layers.append(LayerCheck(layer.name, kind, num_trained, REFUSED if advice else rule, advice))
    return ModelCheck(tuple(layers))

"""Finds the rule of every module with trainable parameters, or says why it can have none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.functional import FunctionalRule
from doppel.privacy.clipping.linear import LinearRule
from doppel.privacy.clipping.norm import LayerNormRule, RMSNormRule
from doppel.privacy.clipping.refusals import UnsupportedLayerError, refusal_of, uses_children_without_calling_them
from doppel.privacy.clipping.rule import LayerRule

RULES: tuple[type[LayerRule], ...] = (LinearRule, EmbeddingRule, LayerNormRule, RMSNormRule)
_CONTAINERS = (nn.ParameterList, nn.ParameterDict)


@dataclass
class JudgedLayer:
    """A module and what is done about it.

    Attributes:
        name: Its name in the model.
        module: The module.
        owned: Its trainable parameters, by their names in it.
        rule: How its gradients are clipped; None where it is refused.
        refusal: Why it is refused, and what to use in its place.
    """

    name: str
    module: nn.Module
    owned: dict[str, nn.Parameter]
    rule: LayerRule | None = None
    refusal: UnsupportedLayerError | None = None


def build_rules(model: nn.Module) -> list[LayerRule]:
    """Build a rule for each module with trainable parameters, in order; rules that share a parameter are linked.

    Raises:
        UnsupportedLayerError: A layer has trainable parameters and no exact rule, or mixes the rows of a batch.
    """
    judged = judge_layers(model)
    for layer in judged:
        if layer.refusal is not None:
            raise layer.refusal
    return [layer.rule for layer in judged if layer.rule is not None]


def judge_layers(model: nn.Module) -> list[JudgedLayer]:
    """List modules with trainable parameters of their own, or refused, in the model's order; raises nothing."""
    judged = [JudgedLayer(name, module, owned) for name, module, owned in _owners(model)]
    for layer in judged:
        try:
            refusal = refusal_of(layer.name, layer.module, layer.owned)
            if refusal is not None:
                raise refusal
            layer.rule = _find_rule(layer) if layer.owned else None
        except UnsupportedLayerError as error:
            layer.refusal = error
    judged = [layer for layer in judged if layer.owned or layer.refusal]
    _tie(judged)
    return judged


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, nn.Parameter]]]:
    """Each module with the trainable parameters that its forward uses itself."""
    absorbed: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in absorbed:
            continue
        if uses_children_without_calling_them(module):
            absorbed.update(map(id, module.modules()))
            owned = dict(module.named_parameters(remove_duplicate=False))
        else:
            owned = dict(_own_parameters(module))
            absorbed.update(id(child) for child in module.children() if isinstance(child, _CONTAINERS))
        yield name, module, {key: p for key, p in owned.items() if p.requires_grad}


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    for key, child in module.named_children():
        if isinstance(child, _CONTAINERS):  # they are never called
            for own, parameter in _own_parameters(child):
                yield f"{key}.{own}", parameter


def _find_rule(layer: JudgedLayer) -> LayerRule:
    for rule in RULES if "forward" not in vars(layer.module) else ():  # one of its own computes anything
        if rule.matches(layer.module) and set(layer.owned) <= set(rule.parameter_names):
            try:
                return rule(layer.name, layer.module)
            except UnsupportedLayerError:
                if rule is not RMSNormRule:  # a name and attributes prove nothing
                    raise
    return FunctionalRule(layer.name, layer.module, layer.owned)


def _tie(judged: list[JudgedLayer]) -> None:
    """A parameter of an Embedding and a Linear has gradients of one kind from both; one of other modules is refused."""
    users: dict[int, list[JudgedLayer]] = defaultdict(list)
    for layer in judged:
        for parameter in {id(p): p for p in layer.owned.values()}.values():
            users[id(parameter)].append(layer)
    for sharing in users.values():
        rules = sorted((layer.rule for layer in sharing), key=lambda rule: isinstance(rule, LinearRule))
        if len(rules) == 2 and isinstance(rules[0], EmbeddingRule) and isinstance(rules[1], LinearRule):
            rules[1].is_formed = rules[0].is_formed
        elif len(rules) > 1:
            names = ", ".join(f"'{layer.name}'" for layer in sharing)
            for layer in sharing:
                layer.refusal = layer.refusal or UnsupportedLayerError(
                    f"modules {names} share a parameter, whose gradient is known for one embedding and one nn.Linear "
                    "alone: give each a parameter of its own, freeze it, or train LoRA (model.lora)"
                )

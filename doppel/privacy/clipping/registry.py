"""Finds the rule of every module with trainable parameters, or says which parameter has none."""

from __future__ import annotations

from collections import defaultdict

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.linear import LinearRule
from doppel.privacy.clipping.norm import HuggingFaceRMSNormRule, LayerNormRule, RMSNormRule
from doppel.privacy.clipping.rule import LayerRule, UnsupportedLayerError

RULES: tuple[type[LayerRule], ...] = (
    LinearRule,
    EmbeddingRule,
    LayerNormRule,
    RMSNormRule,
    HuggingFaceRMSNormRule,
)


def build_rules(model: nn.Module) -> list[LayerRule]:
    """One rule for each module that owns trainable parameters, in the model's order; tied ones know each other.

    Raises:
        UnsupportedLayerError: If a trainable parameter has no rule, is shared in a way that has none, or if a
            layer mixes the rows of a batch.
    """
    rules: list[LayerRule] = []
    for name, module in model.named_modules():
        _refuse_batch_statistics(name, module)
        trainable = [key for key, p in module.named_parameters(recurse=False) if p.requires_grad]
        if trainable:
            rules.append(_find_rule(name, module, trainable))
    _tie(rules)
    return rules


def _refuse_batch_statistics(name: str, module: nn.Module) -> None:
    keeps_statistics = isinstance(module, _InstanceNorm) and module.track_running_stats
    if isinstance(module, _BatchNorm) or keeps_statistics:
        raise UnsupportedLayerError(
            f"module '{name}' ({type(module).__name__}) mixes the rows of a batch, so a row has no gradient "
            "of its own: "
            "replace it by LayerNorm"
        )


def _find_rule(name: str, module: nn.Module, trainable: list[str]) -> LayerRule:
    for rule in RULES:
        if rule.matches(module) and set(trainable) <= set(rule.parameter_names):
            return rule(name, module)
    parameter = f"{name}.{trainable[0]}" if name else trainable[0]
    raise UnsupportedLayerError(
        f"parameter '{parameter}' of a {type(module).__name__} has no per-sample clipping rule: freeze it "
        "(requires_grad=False), or replace the module by Linear, Conv1D, Embedding, LayerNorm or RMSNorm"
    )


def _tie(rules: list[LayerRule]) -> None:
    owners: dict[int, list[LayerRule]] = defaultdict(list)
    for rule in rules:
        for parameter in rule.trained_parameters:
            owners[id(parameter)].append(rule)
    for sharing in owners.values():
        embeddings = [rule for rule in sharing if isinstance(rule, EmbeddingRule)]
        heads = [rule for rule in sharing if isinstance(rule, LinearRule) and not rule.is_transposed]
        if len(sharing) == 2 and len(embeddings) == len(heads) == 1:
            heads[0].tie(embeddings[0])
        elif len(sharing) > 1:
            names = ", ".join(f"'{rule.name}'" for rule in sharing)
            raise UnsupportedLayerError(
                f"modules {names} share a parameter; only an Embedding and a Linear may: untie them, or "
                "freeze the parameter"
            )

"""The models that steps load, which others have made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from commands.lightning.given_models import MINILM, Model, check_model
from commands.privacy.evolution_settings import BASE, GRAMMAR
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.steps import Step
from commands.run_folder.systems import BASE_MODEL
from datamodules.reading.columns import check_schema
from doppel.models.made import LARGER

#: Source encoder of a parser that is its tokenizer's, with the embeddings of the model beside it, if there is one.
_SMALL = "small"


def models_of(plan: RunPlan) -> list[Model]:
    """Return the models that steps load which are to run, each once, but those that the run makes."""
    made = {str(plan.run / file.path) for step in plan.steps for file in step.writes}
    found: dict[tuple[str, str], Model] = {}
    for step in plan.waiting:
        for model in _models(step):
            if model.name not in made:
                found.setdefault(model[1:3], model._replace(field=f"{model.field} of {step.name}"))
    return list(found.values())


def check_models(plan: RunPlan) -> None:
    """Refuse a run whose models are not on this machine, without opening one.

    Raises:
        UserError: One is not.
    """
    for model in models_of(plan):
        if model.is_needed and model.kind in ("causal_lm", "encoder", "frozen"):
            check_model(model.field, model.name)


def _models(step: Step) -> Iterator[Model]:
    """Models that a step loads, by the field that names them."""
    given = {**step.config, **step.config.get("settings", {})}  # the latter of an evolution
    if step.folder is not None:
        arguments = given["model"]["init_args"]
        if step.kind != "fit":  # a parser that annotates has the encoder of its checkpoint
            arguments = {name: value for name, value in arguments.items() if name != "encoder"}
        yield from _of_module(arguments)
    for name in ("encoder", "featurizer"):
        if given.get(name) is not None:
            yield Model(name, given[name], "encoder")
    if given.get("parser") is not None:
        yield Model("public_parser", given["parser"], "parser")
    generator = given.get("generator")
    if generator not in (None, GRAMMAR) and not generator.startswith(("http://", "https://")):
        yield Model("evolution.generator", generator, "causal_lm", is_needed=False)  # it is an input file, too
        if given.get("reference"):
            yield Model("the judge of first texts", BASE, "causal_lm")
    is_chosen = step.command == "keep-best"
    if is_chosen and not given.get("parser"):
        yield Model("the encoder of candidates (candidates=1 does without)", MINILM, "encoder")
    if step.command == "evaluate":
        yield Model("fluency", LARGER, "causal_lm", is_needed=False)
        if given.get("next_token_epochs"):
            yield Model("next_token_epochs", BASE_MODEL, "causal_lm")
        if (schema := (given.get("columns") or {}).get("attributes")) is not None:
            asked = [column.by for column in check_schema(schema).schema.columns if column.by is not None]
            yield from (Model("`by` of attributes.schema", by, "causal_lm", is_needed=False) for by in asked)


def _of_module(given: Mapping[str, Any]) -> Iterator[Model]:
    """Models that a language model or a parser is made of, by its arguments."""
    if given.get("base_model") is not None:
        yield Model("model.base_model", given["base_model"], "frozen" if given.get("lora") else "causal_lm")
    encoder = given.get("encoder")
    if isinstance(encoder, Mapping) and encoder.get("name") == _SMALL:
        yield Model("model.encoder.tokenizer", encoder.get("tokenizer", BASE_MODEL), "tokenizer")
    elif isinstance(encoder, Mapping):
        yield Model("model.encoder", encoder.get("name", MINILM), "encoder")
    if given.get("init_weights") is not None:
        yield Model("model.init_weights", given["init_weights"], "weights")

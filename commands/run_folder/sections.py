"""Sections of an experiment, which hold for every training, for one stage or for one system."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datamodules.guards.redaction import Redaction
from doppel.privacy.spec import PrivacyArguments
from doppel.settings.facts import Fact, facts_of
from doppel.settings.yaml_files import Settings, merge, read_yaml

_TEXT, _NUMBER, _FREE = Fact(text=True), Fact(number=True), Fact("nothing")
_FILE, _HELD_OUT = Fact(text=True, path=True), Fact("evaluation")
_SAMPLING = Fact(
    "samples", keys={"grammar": Fact("samples", True, words=("reference",), text=True), "max_rows": Fact("nothing")}
)
_MODEL = Fact(
    keys={
        "base_model": _FILE,
        "init_weights": _FILE,
        "slots": Fact(path=True, words=("shipped",), text=True),
        "encoder": Fact(keys={"name": _TEXT}),
        "activation_checkpointing": _FREE,
        "cuda_graphs": _FREE,
        "sampling": _SAMPLING,  # as a model's configuration has it
    }
)
_DATA = Fact(
    keys={
        "train_path": _FILE,
        "train_paths": _FILE,
        "unit": Fact(text=True, default="utterance"),
        "unit_names": Fact(text=True, default="exact"),
        "columns": _TEXT,
        "keep_function": _TEXT,
        "batch_size": _NUMBER,
        "keep_share": _NUMBER,
        "limit_train_units": _NUMBER,
        "max_tokens_per_micro_batch": _FREE,
        "max_units_per_micro_batch": _FREE,
        "redact": facts_of(Redaction),
        **{f"{name}_path": Fact("evaluation", True, text=True) for name in ("val", "test")},
        **dict.fromkeys(("val_is_public", "test_is_public", "limit_val_turns"), _HELD_OUT),
    }
)
_MACHINE = ("accelerator", "devices", "num_nodes", "strategy", "precision", "benchmark", "profiler")
_TOLD = ("log_every_n_steps", "enable_progress_bar", "enable_model_summary")
_VALIDATION = ("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps", "limit_val_batches")
_TRAINER = Fact(
    keys={
        **dict.fromkeys((*_MACHINE, *_TOLD), _FREE),
        **dict.fromkeys(_VALIDATION, _HELD_OUT),
        "logger": Fact("nothing", keys={"name": Fact("nothing", text=True)}),
    }
)
#: Parts of a training's settings, which an experiment may give for all, for one stage and for one system; what is not
#: said of a key is said of its section.
SECTIONS = {
    "trainer": _TRAINER,
    "model": _MODEL,
    "sampling": _SAMPLING,
    "data": _DATA,
    "privacy": facts_of(PrivacyArguments),
}


def with_sections(experiment: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return an experiment with sections that win over its own, which are deleted below ``stages``.

    Stages of parsers stay as they are: a parser takes none of the experiment's sections.
    """
    changed = merge(experiment, changes)
    for field in ("stages", "variants"):
        entries = changed.get(field)
        if isinstance(entries, dict):
            changed[field] = {
                name: part if name.startswith("parser") or not isinstance(part, dict) else _without(part, changes)
                for name, part in entries.items()
            }
    return changed


def of_system(experiment: Mapping[str, Any], system: str) -> Settings:
    """Return an experiment as one system has it, with ``variants.SYSTEM`` in its sections."""
    return with_sections({**experiment, "variants": {}}, (experiment.get("variants") or {}).get(system) or {})


def read_experiment(path: Path, fact: Fact | None = None) -> Settings:
    """Read an experiment as it stands in a file; so runs before version 3 kept what ``--set`` gave: ``overrides``."""
    content = read_yaml(path, fact)
    return with_sections(content, content.pop("overrides", None) or {})


def _without(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Settings without what changes give anew; a list that is appended to stays."""
    return {
        key: _without(value, changes[key]) if key in changes and not key.endswith("+") else value
        for key, value in settings.items()
        if key not in changes or key.endswith("+") or (isinstance(value, Mapping) and isinstance(changes[key], Mapping))
    }

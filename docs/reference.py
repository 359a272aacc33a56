"""Writes docs/reference.md, keys of configurations, from the classes that read them: ``python -m docs.reference``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

from docstring_parser import parse

from commands.privacy.evolution_settings import Evolution
from commands.privacy.release_settings import Attributes, Resampling, Topics, Words
from commands.run.execution.slurm import Site
from commands.run.experiment.settings import Adaptation, Experiment
from commands.run_folder.places import PLACE
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.redaction import Redaction
from datamodules.reading.columns import Columns
from doppel.decoding.sampling import SamplingArguments
from doppel.evolution.generators.limits import Limits
from doppel.evolution.generators.wording import Wording
from doppel.models.adapters import LoraArguments
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import CausalLM

PAGE = Path(__file__).parent / "reference.md"
#: Heading → the class whose arguments are its keys.
SECTIONS: dict[str, type] = {
    "Experiment": Experiment,
    "data": DialogueDataModule,
    "data.columns": Columns,
    "model": CausalLM,
    "model.lora": LoraArguments,
    "sampling": SamplingArguments,
    "privacy": PrivacyArguments,
    "resampling": Resampling,
    "topics": Topics,
    "words": Words,
    "attributes": Attributes,
    "evolution": Evolution,
    "evolution.limits": Limits,
    "evolution.wording": Wording,
    "adaptation": Adaptation,
    "redact": Redaction,
    "SLURM site": Site,
}
_HEAD = """# Reference of configurations

Generated from the classes by `python -m docs.reference`; do not edit. An experiment (`configs/experiments/NAME.yaml`)
holds the keys of [Experiment](#experiment). The other sections are keys with keys of their own: `--set
data.batch_size=64`. Arguments of `trainer` are those of [Lightning's
Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html). [Architecture](architecture.md) says where they
are read.
"""


def written() -> str:
    """The page."""
    return "\n".join([_HEAD, *(_section(title, kind) for title, kind in SECTIONS.items())])


def _section(title: str, kind: type) -> str:
    """A heading and a table of the keys of a class, with types, defaults and what its docstring says of them."""
    texts = {entry.arg_name: entry.description or "" for entry in parse(inspect.getdoc(kind) or "").params}
    rows = []
    for name, parameter in inspect.signature(kind).parameters.items():
        cells = (f"`{name}`", f"`{parameter.annotation}`", _default(kind, parameter), _plain(texts[name]))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([f"## {title}\n", "| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _default(kind: type, parameter: inspect.Parameter) -> str:
    """The default as YAML would have it; empty where a value must be given."""
    value: Any = parameter.default
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
    if value is inspect.Parameter.empty or value != value:  # NaN: it must be given
        return ""
    if dataclasses.is_dataclass(value):
        return "see below"
    text = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
    text = text or getattr(value, "__name__", None) or (f"{value:g}" if isinstance(value, float) else str(value))
    return f"`{' '.join(text.split()).replace(f'{PLACE}/', '')}`" if text else '`""`'


def _plain(text: str) -> str:
    """Of a docstring's text one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[^`]*\.)?([\w]+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")

"""A system: how it is made, what it needs, and how tables call it.

Its files lie in the folder of its name::

    RUN/SYSTEM/STAGE/                           a trained model, of which RUN/SYSTEM/sample_STAGE/ samples
    RUN/SYSTEM/{trees,labels}.jsonl             what it writes samples for
    RUN/SYSTEM/{pool,candidates}.jsonl          an over-sample, and several texts for each prompt
    RUN/SYSTEM/{samples.jsonl,evaluation.json}
    RUN/SYSTEM/draws/2/                         the same of what is sampled later

A step is called after its place in the run, with ``-`` for ``/``: ``two_stage-sample_parse_tree``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commands.runs.yaml_files import PLACE
from datamodules.reading.example import Field

#: Model that a language model starts from where an experiment names none.
BASE_MODEL = str(PLACE / "models/base")
#: Stage of a training (a key of ``Experiment.epochs`` and ``Experiment.stages``) → the file of its model.
MODEL_FILES = {
    "one_stage": "configs/utterance_lm.yaml",
    "labels": "configs/parse2utterance.yaml",
    "attributes": "configs/parse2utterance.yaml",
    "parse_tree": "configs/parse_tree_lm.yaml",
    "parse2utterance": "configs/parse2utterance.yaml",
    "parser": "configs/semantic_parser.yaml",
    "parser_low": "configs/semantic_parser.yaml",
}


@dataclass(frozen=True)
class System:
    """A way from private turns to synthetic ones, or a training that stands alone.

    Attributes:
        name: As in ``Experiment.systems``, reports and the ledger's scopes.
        label: As tables and plots call it.
        stages: Its models, keys of :data:`MODEL_FILES`, in the order of the budget that they share.
        learns: What its models learn of the private turns; None: it has no samples.
        models_of: System whose models it samples from, so that it spends nothing itself: sampling is post-processing.
        needs: What an experiment must describe for it: ``""`` nothing, ``stages`` or ``variants`` an entry of its name,
            ``labels`` the list of labels, ``attributes`` which there are, ``adaptation`` that it is one.
        is_main: Whether its figures stand for a run's where one system's are shown, and its samples are those of
            ``RUN/synthetic.jsonl``.
        about: What it does, in words for readers of a page; empty where it has no samples.
    """

    name: str
    label: str
    stages: tuple[str, ...] = ()
    learns: Field | None = None
    models_of: System | None = None
    needs: Literal["", "stages", "variants", "labels", "attributes", "adaptation"] = ""
    is_main: bool = False
    about: str = ""

    @property
    def has_trees(self) -> bool:
        """Whether the samples come with the trees that they were written from."""
        return self.learns == "parse"

    @property
    def has_attributes(self) -> bool:
        """Whether the samples come with the attributes that they were written for, and are counted by these."""
        return self.needs == "attributes"

    @property
    def scope(self) -> str:
        """Scope of the ledger that pays for the samples: the system in whose folder the models lie."""
        return self.models_of.name if self.models_of else self.name

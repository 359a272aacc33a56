"""What an experiment can set of the system ``evolution``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commands.run_folder.places import PLACE
from doppel.errors import UserError
from doppel.evolution.generators.limits import Limits
from doppel.evolution.generators.wording import Wording
from doppel.settings.facts import setting

#: Generator that is the embedded grammar.
GRAMMAR = "grammar"
#: What asks a model that only goes on with a text; the shipped base has a prefix for what it is to write.
CONTINUATION, SHIPPED = Wording("", "{begin}"), Wording(" utterance<|bos|>", " utterance<|bos|> {begin}")
#: Likewise, where there are texts to show: without, it writes whatever the web has.
EXAMPLES = Wording("What people wrote{about}:{examples}\n-", "What people wrote{about}:{examples}\n- {begin}")
#: Folder of the shipped base.
BASE = "models/base"
#: Rows that the run itself measures.
ATTRIBUTES = "attributes"


@dataclass(frozen=True)
class Evolution:
    """Settings of the system ``evolution``, private evolution by DP votes: see ``docs/systems.md``.

    Args:
        generator: The model that writes: ``grammar``, a folder of a causal language model, or the URL of a server that
            speaks OpenAI's protocol, such as ``http://127.0.0.1:8080/v1``. It must be public: no ε covers what it
            learnt.
        model: The server's name of the model.
        rounds: Rounds of votes, T; the noise is calibrated for all of them.
        variations: Variations of each selected text for the next round.
        votes_each: Nearest candidates that each private text votes for, k.
        clusters: Clusters of candidates to vote on instead of candidates: fewer, so that votes exceed the noise.
        encoder: Sentence encoder: ``minilm``, a folder, or a hub name.
        per_label: Whether a text votes within its own label, of the list ``labels``. Label counts are measured with
            ``privacy.histogram_noise_multiplier``.
        rows: Released attribute rows for the prompts: ``attributes`` measures them in the run by ``attributes.schema``,
            with ``attributes.share`` of the budget; or a file as ``python cli.py metadata`` writes it.
        examples: Donated texts to show to the generator, with their attributes as columns. They must not be in the
            private file. Null: the first lines of the public ``reference``.
        num_examples: Examples per prompt, the nearest by attributes, where the wording has ``{examples}``.
        temperature: Sampling temperature.
        top_p: Nucleus of the sampling.
        max_new_tokens: Longest text in tokens.
        batch_size: Prompts per batch, for a model in a folder.
        wording: Prompts; null: what suits the generator.
        limits: Limits on calls, tokens and money for a server.
        key_variable: Environment variable with the API key.
    """

    generator: str = setting(str(PLACE / BASE), path=True, words=(GRAMMAR,))
    model: str = setting("", binds="samples")
    rounds: int = 3
    variations: int = 3
    votes_each: int = 1
    clusters: int | None = None
    encoder: str = setting("minilm", path=True, words=("minilm",))
    per_label: bool = False
    rows: str | None = setting(None, path=True, words=(ATTRIBUTES,))
    examples: str | None = setting(None, path=True, binds="samples")
    num_examples: int = setting(5, binds="samples")
    temperature: float = setting(1.0, binds="samples")
    top_p: float = setting(1.0, binds="samples")
    max_new_tokens: int = setting(64, binds="samples")
    batch_size: int = setting(64, binds="nothing")
    wording: Wording | None = setting(None, binds="samples")
    limits: Limits = setting(factory=Limits, binds="nothing")
    key_variable: str = setting("OPENAI_API_KEY", binds="nothing")

    def __post_init__(self) -> None:
        least = {"rounds": 1, "variations": 0, "votes_each": 1, "max_new_tokens": 1, "batch_size": 1, "num_examples": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UserError(f"evolution.{name} is {getattr(self, name)}: give at least {bound}")
        if not self.temperature > 0 or not 0 < self.top_p <= 1:
            raise UserError("evolution: temperature is above 0, top_p above 0 and at most 1")
        if self.clusters is not None and (self.clusters < 2 or self.per_label):
            raise UserError("evolution.clusters is at least 2, and without per_label")

    @property
    def is_server(self) -> bool:
        """Whether the generator is a server."""
        return self.generator.startswith(("http://", "https://"))

    @property
    def generator_folder(self) -> str | None:
        """The folder of the generator; None where it is the grammar or a server."""
        return None if self.generator == GRAMMAR or self.is_server else self.generator

    @property
    def words(self) -> Wording:
        """How a model is asked, where there is nothing to show it."""
        if self.wording is not None:
            return self.wording
        if self.is_server:
            return Wording()
        return SHIPPED if self.generator.rstrip("/").endswith(BASE) else CONTINUATION

    @property
    def measures_rows(self) -> bool:
        """Whether the run measures the rows of attributes that it asks with."""
        return self.rows == ATTRIBUTES

    def questions(self, num_samples: int) -> int:
        """Return the most texts that the generator writes."""
        return num_samples * (1 + self.variations * self.rounds)


def generator_of(experiment: Mapping[str, Any]) -> str:
    """Return the generator of an evolution by name, from the fields of its experiment."""
    return str((experiment.get("evolution") or {}).get("generator") or Evolution.generator)

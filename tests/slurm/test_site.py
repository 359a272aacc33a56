"""What a cluster is like: times as people write them, memory, and who is to blame for a wrong value."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from transformers import LlamaConfig

from commands.run.execution.slurm import Site, load_site, seconds
from commands.run.experiment.experiment import read_grid, read_values
from commands.run_folder.steps import Step
from doppel.errors import UserError
from doppel.settings.facts import facts_of
from doppel.settings.yaml_files import dump, parse_yaml, read_yaml

TIMES = ("90", "90:00", "12:00:00", "1-12", "1-12:30", "1-12:30:00")


def test_times_are_seconds_as_sbatch_takes_them() -> None:
    times = {"90": 5400, "1:30:00": 5400, "61:00": 3660, "0-2": 7200, "1-12:00:00": 129_600, "1-12:30": 131_400}
    assert {time: seconds(time) for time in times} == times


@pytest.mark.parametrize("time", TIMES)
def test_a_time_comes_to_sbatch_as_it_was_written_however_it_was_given(time: str, tmp_path: Path) -> None:
    """Without quotes too: YAML 1.1 reads 12:00:00 as 43200, in base 60."""
    file = tmp_path / "site.yaml"
    file.write_text(f"fit_time: {time}\n")
    for site in (
        load_site(file),
        load_site(tmp_path.joinpath("site.yaml"), read_values([f"predict_time={time}"], facts_of(Site))),
    ):
        assert f"--time={time}" in site.sbatch([Step("fit", "fit")])
    assert f"--time={time}" in site.sbatch([Step("predict", "predict")])
    (point, other) = read_grid([f"trainer.max_time={time},7:00:00"])
    assert (str(point["trainer.max_time"]), other["trainer.max_time"]) == (time, "7:00:00")
    file.write_text(dump({"fit_time": time}))  # as a run writes it, any reader of YAML understands it
    assert yaml.safe_load(file.read_text()) == read_yaml(file) == {"fit_time": time}


@pytest.mark.parametrize("time", ["12h", "1:2:3:4", "12:60", "1-24", "-5", "1.5", "2 days", "true"])
def test_what_is_no_time_is_refused_with_the_forms_that_are(time: str, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"tool_time: {time}\n")
    for given, blamed in (
        (lambda: load_site(file), str(file)),
        (lambda: load_site(None, {"fit_time": time}), "--slurm"),
    ):
        with pytest.raises(UserError) as error:
            given()
        assert error.value.about == blamed and "_time" in str(error.value) and time.lower() in str(error.value).lower()
    assert "D-HH:MM:SS" in str(error.value)


def test_a_job_has_more_time_than_it_is_told_to_save_in() -> None:
    """SLURM signals a job at its start where its limit is shorter, and it would be requeued for ever."""
    for site in (Site(fit_time="2", notice_s=None), Site(fit_time="10:00", notice_s=600)):
        with pytest.raises(UserError, match="fit_time is .* more than (120|600) s, or a smaller notice_s"):
            site.sbatch([Step("fit", "fit")])
    assert "--signal=USR2@119" in Site(fit_time="2", notice_s=119).sbatch([Step("fit", "fit")])
    for seconds_of_notice in (0, -1, 65_536):
        with pytest.raises(UserError, match="from 1 to 65535"):
            Site(notice_s=seconds_of_notice)


def test_numbers_that_no_job_can_have_are_refused_before_it_is_submitted() -> None:
    for name in ("nodes", "tasks_per_node", "cpus_per_task", "tool_cpus", "tool_tasks", "throttle"):
        with pytest.raises(UserError, match=f"{name} is 0: give a whole number of at least 1"):
            Site(**{name: 0})
    with pytest.raises(UserError, match="gpus_per_node is -1: .* at least 0"):
        Site(gpus_per_node=-1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0042", "0042"), ("42", 42), ("-1.5", -1.5), ("0.5", 0.5), ("1_000", 1000), ("1e-6", 1e-6), ("1e2", 100)],
)
def test_numbers_are_those_of_people(text: str, value: object) -> None:
    assert parse_yaml(text) == value and parse_yaml(dump({"a": text}))["a"] == text
    assert load_site(None, read_values([f"account={text}"], facts_of(Site))).account == text, "a name is no number"


def test_an_error_names_the_field_and_what_it_was_given_by(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("nodes: 2\n")
    for changes, words in (
        ({"nodes": "two"}, ["nodes", "'two'"]),
        ({"fit_tme": 3}, ["fit_tme", "did you mean 'fit_time'"]),
    ):
        with pytest.raises(UserError) as error:
            load_site(file, changes)
        assert error.value.about == "--slurm" and all(word in str(error.value) for word in words)


def test_a_job_asks_for_time_and_for_the_memory_of_its_processes() -> None:
    """Unless its options do: --mem and --mem-per-cpu exclude one another."""

    def asked(site: Site, command: str) -> dict[str, str]:
        words = site.sbatch([Step(command, command)])[2:]
        return {
            name: value for name, _, value in (word.partition("=") for word in words) if name in ("--time", "--mem")
        }

    site = Site(tasks_per_node=4)
    assert asked(site, "fit") == {"--time": "12:00:00", "--mem": "64G"}
    assert asked(site, "predict") == {"--time": "4:00:00", "--mem": "64G"}
    assert asked(site, "report") == asked(site, "evaluate") == {"--time": "2:00:00", "--mem": "16G"}
    assert asked(load_site(None, {"profile": "dgx2-v100"}), "fit")["--mem"] == "0"
    assert "--mem" not in asked(Site(sbatch_args=["--mem-per-cpu=2G"]), "fit")
    assert asked(Site(fit_time=None, fit_mem=None), "fit") == {}
    with pytest.raises(UserError, match="fit_mem"):
        Site(fit_mem="much")


@pytest.mark.parametrize(
    ("gpus", "asked", "others"),
    [
        (0, {"nodes": "4", "ntasks-per-node": "1", "mem": "16G"}, {}),
        (1, {"nodes": "4", "ntasks-per-node": "1", "gres": "gpu:1", "mem": "16G"}, {"gres": "gpu:1"}),
        (3, {"nodes": "2", "ntasks-per-node": "3", "gres": "gpu:3", "mem": "48G"}, {"gres": "gpu:1"}),
        (8, {"nodes": "1", "ntasks-per-node": "4", "gres": "gpu:4", "mem": "64G"}, {"gres": "gpu:1"}),
    ],
)
def test_a_step_that_embeds_private_texts_has_a_gpu_for_each_of_its_tasks(
    gpus: int, asked: dict[str, str], others: dict[str, str]
) -> None:
    site = Site(gpus_per_node=gpus, tool_tasks=4)
    evolve = Step("evolve", "evolve", protected=("private.csv",))
    one = {"nodes": "1", "ntasks-per-node": "1", "mem": "16G", **others}
    for step, expected in ((evolve, asked), (Step("evaluate", "evaluate"), one)):
        words = site.sbatch([step])
        options = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
        assert {key: options[key] for key in ("nodes", "ntasks-per-node", "gres", "mem") if key in options} == expected


@pytest.mark.parametrize(
    ("dtype", "lora", "more", "notice"),
    [("bfloat16", True, 3, 120), ("float32", True, 9, 120), ("bfloat16", False, 24, 300), ("float32", False, 12, 210)],
)
def test_the_memory_and_the_notice_of_a_training_follow_its_base(
    dtype: str, lora: bool, more: int, notice: int, tmp_path: Path
) -> None:
    """Below adapters the processes of a node share what files hold; 3 GiB without content take no disk."""
    LlamaConfig(dtype=dtype).save_pretrained(tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(3 * 2**30)
    lora_of = {"rank": 8} if lora else None
    model, small = (
        Step("fit", "fit", {"model": {"init_args": args}})
        for args in ({"base_model": str(tmp_path), "lora": lora_of}, {"base_model": "models/base"})
    )
    for site, memory in ((Site(tasks_per_node=4), f"{64 + more}G"), (Site(tasks_per_node=4, fit_mem="20G"), "80G")):
        assert {f"--mem={memory}", f"--signal=USR2@{notice}"} <= {*site.sbatch([small, model])}
    assert "--mem=64G" in Site(tasks_per_node=4).sbatch([small])

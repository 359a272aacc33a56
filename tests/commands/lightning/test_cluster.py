"""Who tells a process its rank, and strategies under which a logical batch is one step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from commands.lightning.cluster import SrunEnvironment, cluster_environment, settle_strategy
from doppel.errors import UserError

JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}
STEP = {**JOB, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
MODEL = SimpleNamespace(class_path="lightning_modules.causal_lm.UtteranceLM")


@pytest.mark.parametrize(
    ("variables", "devices", "nodes", "kind"),
    [
        ({}, 2, 1, None),
        (TORCHRUN, 2, 2, TorchElasticEnvironment),
        ({**TORCHRUN, **STEP, "WORLD_SIZE": "2"}, [0, 1], 1, TorchElasticEnvironment),  # torchrun within a job
        (STEP, 2, 1, SrunEnvironment),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}, "2", 2, SrunEnvironment),
        (JOB, 2, 1, LightningEnvironment),  # the script itself: no srun has made two of it
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, 1, 1, LightningEnvironment),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, 4, 1, LightningEnvironment),
    ],
)
def test_processes_know_their_rank_by_who_started_them(
    variables: dict[str, str], devices: object, nodes: int, kind: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = cluster_environment(devices, nodes, variables)
    assert found is None if kind is None else type(found) is kind


@pytest.mark.parametrize(
    ("variables", "devices", "nodes", "advice"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "2"}, 1, 1, "--trainer.devices 2 --trainer.num_nodes 1"),
        (STEP, 1, 1, "--trainer.devices 2 --trainer.num_nodes 1"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, 2, 2, "--trainer.devices 1 --trainer.num_nodes 1"),
    ],
)
def test_more_or_fewer_processes_than_devices_are_one_line(
    variables: dict[str, str], devices: int, nodes: int, advice: str
) -> None:
    with pytest.raises(UserError, match=advice):
        cluster_environment(devices, nodes, variables)


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp_find_unused_parameters_true",
        "ddp_spawn",
        "deepspeed",
        "deepspeed_stage_2",
        "fsdp",
        SimpleNamespace(class_path="lightning.pytorch.strategies.DDPStrategy"),
        SimpleNamespace(class_path="lightning.pytorch.strategies.FSDPStrategy"),
    ],
    ids=str,
)
def test_a_strategy_that_a_logical_batch_cannot_have_is_refused_by_name(strategy: object) -> None:
    """Whether what it needs is installed or not, for nothing of it is built."""
    trainer = SimpleNamespace(strategy=strategy, devices=1, num_nodes=1)
    name = strategy if isinstance(strategy, str) else strategy.class_path  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=f"trainer.strategy is {name}.* ddp_logical"):
        settle_strategy(trainer, MODEL)
    other = SimpleNamespace(class_path="lightning.pytorch.demos.boring_classes.BoringModel")
    settle_strategy(trainer, other)
    assert trainer.strategy is strategy, "another kind of module trains as it likes"


def test_several_devices_share_logical_batches() -> None:
    for strategy, devices, settled in (("auto", 2, "ddp_logical"), ("ddp", "2", "ddp_logical"), ("auto", 1, "auto")):
        trainer = SimpleNamespace(strategy=strategy, devices=devices, num_nodes=1)
        settle_strategy(trainer, MODEL)
        assert trainer.strategy == settled

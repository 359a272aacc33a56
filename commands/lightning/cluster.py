"""Who started the processes of a command, and by which strategy they train: torchrun, SLURM, or Lightning itself."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies import SingleDeviceStrategy

from doppel.errors import UserError
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.strategy import LogicalBatchDDPStrategy

#: Strategies under which a logical batch is one step; ``auto`` and ``ddp`` become ``ddp_logical`` on several devices.
_STRATEGIES = ("auto", "ddp", LogicalBatchDDPStrategy.strategy_name, "single_device")


class SrunEnvironment(SLURMEnvironment):
    """A task of srun for each device, however they were asked for; requeueing is left to Preemption.

    Lightning's own refuses ``--ntasks`` without ``--ntasks-per-node``, and saves wherever its signal finds the process.
    """

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    @staticmethod
    def _validate_srun_variables() -> None:
        """Nothing: :func:`cluster_environment` has counted the tasks."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Nothing, likewise."""


def cluster_environment(
    devices: Any, num_nodes: int, environment: Mapping[str, str] = os.environ
) -> ClusterEnvironment | None:
    """Return what tells a process its rank: torchrun, else srun with a task a device, else Lightning, which starts all.

    Args:
        devices: ``trainer.devices``, on each node.
        num_nodes: ``trainer.num_nodes``.
        environment: Variables of the process.

    Returns:
        None where Lightning is to look for another one.

    Raises:
        UserError: There are more or fewer processes than devices.
    """
    each = num_devices(devices)
    if "TORCHELASTIC_RUN_ID" in environment:
        here, all_of_them = int(environment["LOCAL_WORLD_SIZE"]), int(environment["WORLD_SIZE"])
        _refuse("torchrun started", here, all_of_them // here, each, num_nodes)
        return TorchElasticEnvironment()
    if "SLURM_JOB_ID" not in environment:
        return None
    tasks, nodes = (int(environment.get(f"SLURM_STEP_NUM_{name}", "1")) for name in ("TASKS", "NODES"))
    if tasks == 1:  # of srun, or the script itself: there is one process
        _refuse("the job started", 1, nodes, each if num_nodes > 1 else 1, num_nodes)
        return LightningEnvironment()
    _refuse("srun started", -(-tasks // nodes), nodes, each, num_nodes)
    return SrunEnvironment()


def _refuse(who: str, here: int, nodes: int, devices: int, num_nodes: int) -> None:
    """Refuse numbers of processes and devices that differ."""
    if (here, nodes) != (devices, num_nodes):
        raise UserError(
            f"{who} {here} process(es) on each of {nodes} node(s), and the trainer has {devices} device(s) on each of "
            f"{num_nodes}: give --trainer.devices {here} --trainer.num_nodes {nodes}, or start one process a device"
        )


def settle_strategy(trainer: Any, model: Any) -> None:
    """Let several devices share logical batches, where nothing else is asked for.

    Args:
        trainer: Key ``trainer`` of a configuration.
        model: Key ``model``; one of another kind than :class:`LogicalBatchModule` keeps what was asked for.

    Raises:
        UserError: A logical batch cannot be one step under the strategy.
    """
    path = str(getattr(model, "class_path", ""))
    if not issubclass(_class(path), LogicalBatchModule):
        return
    asked = trainer.strategy
    named = asked if isinstance(asked, str) else str(getattr(asked, "class_path", type(asked).__name__))
    can = named in _STRATEGIES if "." not in named else issubclass(_class(named), _CLASSES)
    if not can:
        raise UserError(
            f"trainer.strategy is {named}, whose ranks meet within a backward pass; here they run different numbers of "
            "micro-batches and meet once a step: leave it out, or give ddp_logical"
        )
    if asked in ("auto", "ddp") and (trainer.num_nodes > 1 or num_devices(trainer.devices) > 1):
        trainer.strategy = LogicalBatchDDPStrategy.strategy_name


_CLASSES = (LogicalBatchDDPStrategy, SingleDeviceStrategy)


def _class(path: str) -> type:
    """A class by its path; ``object`` for what is none."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name) if module else object
    except (ImportError, AttributeError):
        return object
    return found if isinstance(found, type) else object


def num_devices(devices: Any) -> int:
    """Return how many devices ``trainer.devices`` names on a node."""
    if isinstance(devices, list):
        return len(devices)
    if str(devices).isdigit():
        return max(int(devices), 1)
    return max(torch.cuda.device_count(), 1)  # auto, and -1 for all

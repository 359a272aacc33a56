"""A DDP strategy whose ranks may run different numbers of micro-batches."""

from __future__ import annotations

import atexit

import torch.distributed as dist
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class LogicalBatchDDPStrategy(DDPStrategy):
    """DDP without a gradient reducer: ranks start from the parameters of rank 0 and sum gradients once per step.

    A reducer would all-reduce in every backward pass and wait for each rank's. Poisson samples have a different size
    on each rank, so ranks run different numbers of micro-batches and meet once, in
    :class:`doppel.gradients.GradientReducer`.

    A process leaves its group before the interpreter ends, whatever the backend (Lightning sees to NCCL alone): gloo's
    threads abort the process if the interpreter goes first, now and then, after all work is done.
    """

    strategy_name = "ddp_logical"

    def setup_environment(self) -> None:
        """Join the group, and leave it at the process's end."""
        super().setup_environment()
        atexit.register(leave_group)

    def configure_ddp(self) -> None:
        """Broadcast parameters and buffers of rank 0; leave the module unwrapped."""
        assert self.model is not None
        _sync_module_states(self.model)


def leave_group() -> None:
    """End the default process group, if there is one; its threads are joined."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


StrategyRegistry.register(
    LogicalBatchDDPStrategy.strategy_name,
    LogicalBatchDDPStrategy,
    description=LogicalBatchDDPStrategy.__doc__,
)

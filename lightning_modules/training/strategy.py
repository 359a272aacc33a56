"""A DDP strategy whose ranks may run different numbers of micro-batches."""

from __future__ import annotations

from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class LogicalBatchDDPStrategy(DDPStrategy):
    """DDP without a gradient reducer: ranks start from the parameters of rank 0 and sum gradients once per step.

    A reducer would all-reduce in every backward pass and wait for each rank's. Poisson samples have a different size
    on each rank, so ranks run different numbers of micro-batches and meet once, in
    :class:`doppel.gradients.GradientReducer`.
    """

    strategy_name = "ddp_logical"

    def configure_ddp(self) -> None:
        """Broadcast parameters and buffers of rank 0; leave the module unwrapped."""
        assert self.model is not None
        _sync_module_states(self.model)


StrategyRegistry.register(
    LogicalBatchDDPStrategy.strategy_name,
    LogicalBatchDDPStrategy,
    description=LogicalBatchDDPStrategy.__doc__,
)

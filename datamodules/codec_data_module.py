"""What all data modules share: where the codec comes from, and which rank this is."""

from __future__ import annotations

from lightning import LightningDataModule

from datamodules.codec import Codec


class CodecDataModule(LightningDataModule):
    """A data module that writes text in the format of the model it feeds.

    Attributes:
        codec: Overrides the codec of the trainer's model, for use without a trainer.
    """

    codec: Codec | None = None

    def require_codec(self) -> Codec:
        """The codec set here, else that of the trainer's model.

        Raises:
            RuntimeError: There is neither.
        """
        if self.codec is not None:
            return self.codec
        if self.trainer is None:
            raise RuntimeError("a data module without a trainer needs its `codec` attribute set")
        codec = self.trainer.lightning_module.codec
        assert isinstance(codec, Codec)
        return codec

    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this process and number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def global_step(self) -> int:
        """Optimiser steps taken so far."""
        return self.trainer.global_step if self.trainer else 0

"""Prompts for ``predict``: the trees that an earlier stage wrote, or nothing at all."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

from torch.utils.data import DataLoader

from datamodules.codec_data_module import CodecDataModule
from datamodules.prompt_batch import PromptBatch
from datamodules.shard_sampler import ShardSampler
from doppel.errors import DataError
from doppel.files import read_json_lines


class PromptDataModule(CodecDataModule):
    """Prompts in batches of similar length, sharded by rank, less those already answered.

    Sample ``i`` uses prompt ``i`` of the file, from its start again when the prompts are used up. The writer
    of the samples sets ``done`` to the indices that are on disk before the loader is made, so an interrupted
    run goes on where it stopped, under any number of ranks.

    Args:
        prompts_path: JSON lines with the prompts, as the tree stage writes them; null for unconditional
            models.
        num_samples: Number of samples, over all ranks; null for one for each prompt of the file.
        batch_size: Most samples asked for together on a rank; they are on disk when all of them are drawn. Many more
            than the model's ``sampling.max_rows``, so that texts that end make room for others; fewer where all ranks
            would not have a batch each.
        prompt_field: Key of the prompt in each line; null for the field that the model is conditioned on.
    """

    def __init__(
        self,
        prompts_path: str | None = None,
        num_samples: int | None = None,
        batch_size: int = 512,
        prompt_field: str | None = None,
    ) -> None:
        super().__init__()
        if num_samples is None and prompts_path is None:
            raise DataError("neither num_samples nor prompts_path is set: say how many samples to draw")
        if num_samples is not None and num_samples < 1:
            raise DataError(f"num_samples is {num_samples}: it must be at least 1")
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}: it must be at least 1")
        self.prompts_path = prompts_path
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.prompt_field = prompt_field
        #: Indices of samples that are already written.
        self.done: set[int] = set()
        self._prompts: list[str | None] = []
        self._input_ids: list[list[int]] = []

    def setup(self, stage: str) -> None:
        """Read and tokenise the prompts."""
        codec = self.require_codec()
        if self.prompts_path is None:
            if codec.source is not None:
                raise DataError(
                    f"the model writes {codec.target!r} given {codec.source!r}, but prompts_path is not set: "
                    "give the file of the stage before"
                )
            self._prompts, self._input_ids = [None], [codec.encode_prompt(None)]
        else:
            if codec.source is None:
                raise DataError(
                    f"prompts_path is {self.prompts_path}, but the model takes no prompt: remove it, "
                    "or use a model with a source"
                )
            texts = _read_prompts(Path(self.prompts_path), self.prompt_field or codec.source)
            if self.num_samples is not None:
                texts = texts[: self.num_samples]
            self._prompts = list(texts)
            self._input_ids = codec.encode_prompts(texts)

    @property
    def num_total(self) -> int:
        """Samples over all ranks, with those already written; known after ``setup``."""
        return self.num_samples if self.num_samples is not None else len(self._prompts)

    def predict_dataloader(self) -> DataLoader[PromptBatch]:
        """Batches of prompts that are not done yet, longest first, on this rank."""
        # Lightning cannot see the indices inside a batch of ours, and says so; the batch carries them itself.
        warnings.filterwarnings("ignore", message="Couldn't infer the batch indices")
        used = len(self._prompts)
        todo = [i for i in range(self.num_total) if i not in self.done]
        todo.sort(key=lambda i: len(self._input_ids[i % used]), reverse=True)
        rank, world_size = self.rank_and_world_size()
        size = max(1, min(self.batch_size, math.ceil(len(todo) / world_size)))
        batches = [
            PromptBatch(part, [self._prompts[i % used] for i in part], [self._input_ids[i % used] for i in part])
            for start in range(0, len(todo), size)
            for part in [todo[start : start + size]]
        ]
        sampler = ShardSampler(len(batches), rank, world_size)
        return DataLoader(batches, sampler=sampler, batch_size=None)  # type: ignore[arg-type]


def _read_prompts(path: Path, field: str) -> list[str]:
    """The named field of every line.

    Raises:
        DataError: The file is missing or empty, or a line is broken or lacks the field.
    """
    if not path.is_file():
        raise DataError(f"no prompts at {path}: run the stage that writes them first, or correct prompts_path")
    prompts: list[str] = []
    for number, record in read_json_lines(path):
        prompt = record.get(field)
        if not isinstance(prompt, str):
            raise DataError(f"{path}:{number}: no {field!r} as a string: add it, or set prompt_field to its key")
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"{path} holds no prompt: run the stage that writes them again")
    return prompts

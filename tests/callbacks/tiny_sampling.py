"""A sampling of a tiny model, for the tests of callbacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from callbacks.synthetic_writer import SyntheticWriter
from datamodules.batches.batch import PromptBatch
from datamodules.reading.example import Field
from datamodules.text_format import TextFormat
from doppel.decoding.sampling import SamplingArguments
from lightning_modules.sampling import Sample, draw_samples

NUM_SAMPLES = 22


WORDS = ["(Yield)", "(Do", ":arg", "1)"]


@dataclass
class Prompts:
    indices: list[int]
    prompts: list[str | None]


class PromptData(LightningDataModule):
    """Public prompts in batches of 4, without those in ``done``."""

    is_public = True
    prompts_digest: str | None = None

    def __init__(self, prompts: list[str | None], obedient: bool = True) -> None:
        super().__init__()
        self.prompts = prompts
        self.obedient = obedient
        self.num_total = len(prompts)
        self.done: set[int] = set()

    def predict_dataloader(self) -> DataLoader[int]:
        left = [i for i in range(len(self.prompts)) if i not in self.done or not self.obedient]
        return DataLoader(left, batch_size=4, collate_fn=self.collate)  # type: ignore[arg-type]

    def collate(self, indices: list[int]) -> Prompts:
        return Prompts(indices, [self.prompts[i] for i in indices])


class TinyModel(LightningModule):
    """A random GPT-2 over four words; remembers what it was asked to sample."""

    def __init__(self, source: Field | None = None, target: Field = "parse", redraws: int | None = None) -> None:
        super().__init__()
        self.redraws = redraws
        vocabulary = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", *WORDS])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
        names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
        self.text_format = TextFormat(fast, source=source, target=target, max_length=16)
        torch.manual_seed(0)
        sizes = {"vocab_size": len(vocabulary), "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 1}
        self.model = GPT2LMHeadModel(GPT2Config(**sizes))
        self.asked: list[int] = []

    def predict_step(self, batch: Prompts, batch_idx: int) -> list[Sample]:
        self.asked += batch.indices
        prompts_ids = [self.text_format.encode_prompt(prompt) for prompt in batch.prompts]
        prompts = PromptBatch(batch.indices, batch.prompts, prompts_ids)
        return draw_samples(
            self.model, self.text_format, prompts, SamplingArguments(max_new_tokens=6, redraws=self.redraws)
        )


def sample(
    output: Path,
    *callbacks: Callback,
    model: TinyModel | None = None,
    data: LightningDataModule | None = None,
    stage: str = "tree",
    ckpt_path: Path | None = None,
    **trainer: Any,
) -> TinyModel:
    """One run of ``predict``; returns the model, which knows the indices it sampled."""
    model = model or TinyModel()
    trainer = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False} | trainer
    trainer.setdefault("enable_progress_bar", False)
    writer = SyntheticWriter(str(output), stage=stage)
    runner = Trainer(callbacks=[writer, *callbacks], enable_model_summary=False, **trainer)
    data = data or PromptData([None] * NUM_SAMPLES)
    runner.predict(model, datamodule=data, return_predictions=False, ckpt_path=ckpt_path)
    return model


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]

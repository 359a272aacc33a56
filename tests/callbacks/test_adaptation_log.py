"""An adaptation of a model to public text: its loss by step, what an interruption leaves, and what its card says."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from callbacks.export import ExportPretrained
from doppel.errors import DataError
from doppel.grammar import generate
from doppel.models.adapters import LoraArguments
from lightning_modules.causal_lm import CausalLM
from models.base.text_mixture import TextMixtureDataModule

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def llama(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers of the family of the model that is adapted."""
    folder, tokenizer = tmp_path_factory.mktemp("llama"), AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes, **ids)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("public") / "utterances.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{turn.utterance} please {number}\n" for number, turn in enumerate(generate(60, seed=9)))
    return str(path)


def mixture(path: str) -> TextMixtureDataModule:
    return TextMixtureDataModule(
        path, grammar_turns=40, max_utterances=40, block_length=256, batch_size=4, num_val_pairs=4, num_val_utterances=8
    )


def fit(folder: Path, llama: str, data: Any, callbacks: list[Callback], **kwargs: Any) -> CausalLM:
    torch.manual_seed(3)
    model = CausalLM(base_model=llama, lora=LoraArguments(rank=2, alpha=4.0), loss_divisor=256.0)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=4,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        logger=CSVLogger(folder, "loss", flush_logs_every_n_steps=1),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint(dirpath=folder / "checkpoints", every_n_train_steps=2, save_top_k=-1)],
    )
    trainer.fit(model, data, **kwargs)
    return model


def losses(folder: Path) -> list[tuple[int, float]]:
    """Steps that were validated, with the loss, over all pieces of the run."""
    rows = []
    for path in sorted(folder.glob("loss/version_*/metrics.csv")):
        with path.open() as file:
            rows += [row for row in csv.DictReader(file) if row.get("val/loss")]
    return [(int(row["step"]), float(row["val/loss"])) for row in rows]


class Stop(Callback):
    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == 3:
            raise KeyError("crash")


def test_an_adaptation_goes_on_where_it_was_interrupted(llama: str, utterances: str, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", llama, mixture(utterances), [ExportPretrained()])
    found = losses(tmp_path / "whole")
    assert len(found) == 2 and all(0 < loss < 10 for _, loss in found)
    broken = tmp_path / "broken"
    with pytest.raises(KeyError, match="crash"):
        fit(broken, llama, mixture(utterances), [Stop()])
    (saved,) = (broken / "checkpoints").glob("*step=2.ckpt")
    resumed = fit(broken, llama, mixture(utterances), [], ckpt_path=str(saved))
    assert losses(broken) == found
    trained, again = dict(whole.named_parameters()), dict(resumed.named_parameters())
    assert all(torch.equal(trained[name], again[name]) for name in trained)
    card = json.loads((tmp_path / "whole" / "model" / "privacy_card.json").read_text())
    assert card["private"] is False and card["is_public"] is True
    assert card["trained_on"]["utterances"] == "utterances.txt.gz" and card["trained_on"]["steps"] == 4


def test_held_out_utterances_are_those_behind_the_trained_ones(llama: str, utterances: str) -> None:
    data = mixture(utterances)
    data.text_format = CausalLM(base_model=llama).text_format
    data.setup("fit")
    with gzip.open(utterances, "rt") as file:
        lines = [line.strip() for line in file]
    said = []
    for batch in data.val_dataloader():
        for part in batch.micro_batches:
            for ids, labels in zip(part.input_ids, part.labels, strict=True):
                if ids[labels == -100].tolist() and " please " in data.text_format.decode(
                    labels[labels != -100].tolist()
                ):
                    said.append(data.text_format.decode(labels[labels != -100].tolist()))
    assert sorted(said) == sorted(lines[40:48])
    with pytest.raises(DataError, match="num_val_utterances is 5"):
        TextMixtureDataModule(utterances, num_val_utterances=5)

"""Training that starts from the weights of another one."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import private_training
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from private_training import data_module

from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from lightning_modules.causal_lm import CausalLM, ParseTreeLM, UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def fit(folder: Path, model: CausalLM, corpus: str, callbacks: list[Callback] | None = None, **kwargs: Any) -> Trainer:
    """One epoch of five steps; the checkpoint is where a run folder has it."""
    trainer = private_training.fit(folder, model, data_module(corpus), callbacks or [], **({"max_epochs": 1} | kwargs))
    trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt")
    return trainer


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str) -> tuple[Path, CausalLM]:
    """Run folder of a training on public turns, and what came out."""
    folder = tmp_path_factory.mktemp("public")
    model = ParseTreeLM(base_model=tiny_model)
    fit(folder, model, corpus)
    return folder, model


def weights(model: CausalLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.model.parameters()])


def test_training_starts_from_the_weights_of_a_run_folder_or_of_its_checkpoint(
    public: tuple[Path, CausalLM], tiny_model: str
) -> None:
    folder, trained = public
    for path in (folder, folder / "checkpoints" / "last.ckpt"):
        warm = UtteranceLM(base_model=tiny_model, init_weights=str(path))
        assert torch.equal(weights(warm), weights(trained))
    assert not torch.equal(weights(UtteranceLM(base_model=tiny_model)), weights(trained))


def test_a_resumed_run_keeps_its_own_weights(
    public: tuple[Path, CausalLM], tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    first = ParseTreeLM(base_model=tiny_model)
    trainer = fit(tmp_path, first, corpus)
    assert trainer.global_step == 5
    resumed = ParseTreeLM(base_model=tiny_model, init_weights=str(public[0]))
    last = str(tmp_path / "checkpoints" / "last.ckpt")
    fit(tmp_path / "again", resumed, corpus, ckpt_path=last)  # its epoch is over: no step is left
    assert torch.equal(weights(resumed), weights(first))


def test_the_record_is_in_the_configuration_and_travels_with_the_checkpoint(
    public: tuple[Path, CausalLM], tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    folder, _ = public
    logger = CSVLogger(tmp_path)
    fit(tmp_path, ParseTreeLM(base_model=tiny_model, init_weights=str(folder)), corpus, logger=logger)
    digest = hashlib.sha256((folder / "checkpoints" / "last.ckpt").read_bytes()).hexdigest()
    logged = (Path(logger.log_dir) / "hparams.yaml").read_text()
    assert digest in logged and str(folder) in logged
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["warm_start"] == {"path": str(folder), "sha256": digest, "private": None, "is_public": False}


def test_privately_trained_weights_are_said_to_be_so(
    tiny_model: str, private_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warm = UtteranceLM(base_model=tiny_model, init_weights=str(private_run / "fit"))
    assert "'default'" in caplog.text
    assert warm.warm_start is not None and warm.warm_start["private"]["target_epsilon"] == 8.0


def test_adapters_go_on_top_of_whole_weights_and_adapters_need_their_like(
    public: tuple[Path, CausalLM], tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    folder, trained = public
    lora = LoraArguments(rank=2)
    model = ParseTreeLM(base_model=tiny_model, init_weights=str(folder), lora=lora)
    assert torch.equal(model.model.transformer.wte.weight, trained.model.transformer.wte.weight)
    layer = model.model.transformer.h[0].attn.c_attn
    assert torch.equal(layer.base_layer.weight, trained.model.transformer.h[0].attn.c_attn.weight)
    fit(tmp_path, model, corpus)
    again = ParseTreeLM(base_model=tiny_model, init_weights=str(tmp_path), lora=lora)
    assert torch.equal(weights(again), weights(model))
    with pytest.raises(UserError, match="lora"):
        ParseTreeLM(base_model=tiny_model, init_weights=str(tmp_path))


def edited(public: tuple[Path, CausalLM], path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    checkpoint = copy.deepcopy(torch.load(public[0] / "checkpoints" / "last.ckpt", weights_only=True))
    change(checkpoint)
    torch.save(checkpoint, path)
    return str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["state_dict"].pop("model.transformer.ln_f.bias"), "transformer.ln_f.bias"),
        (lambda c: c["state_dict"].update({"model.transformer.wpe.weight": torch.zeros(8, 32)}), r"\(8, 32\)"),
        (lambda c: c["text_format"].update(tokenizer="another"), "tokenizer"),
        (lambda c: c["text_format"].update(linearisation="raw"), "linearisation"),
        (lambda c: c.pop("text_format"), r"other\.ckpt"),
        (lambda c: c.update(state_dict={"network.weight": torch.zeros(2)}), r"other\.ckpt"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_words(
    public: tuple[Path, CausalLM],
    tiny_model: str,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    path = edited(public, tmp_path / "other.ckpt", change)
    with pytest.raises(UserError, match=message) as error:
        ParseTreeLM(base_model=tiny_model, init_weights=path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_missing_or_no_checkpoint_is_refused(tiny_model: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="init_weights"):
        ParseTreeLM(base_model=tiny_model, init_weights=str(tmp_path))
    (tmp_path / "text.ckpt").write_text("hello")
    with pytest.raises(UserError, match=r"text\.ckpt"):
        ParseTreeLM(base_model=tiny_model, init_weights=str(tmp_path / "text.ckpt"))

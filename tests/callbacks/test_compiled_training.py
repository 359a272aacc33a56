"""Training through torch.compile, private and ordinary, ends at the weights of training without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from callbacks.differential_privacy import DifferentialPrivacy
from datamodules.dialogue_data_module import DialogueDataModule
from doppel.errors import UserError
from doppel.privacy.clipping.compiled import CompiledFunction
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import CausalLM, UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


def trained(folder: Path, base: str, corpus: str, is_compiled: bool, is_private: bool) -> torch.Tensor:
    """The weights after one epoch; compiled runs have one fixed shape, with micro-batches filled up to it."""
    model = UtteranceLM(base_model=base, optimizer=sgd, max_length=16, compile=is_compiled)
    data = DialogueDataModule(
        corpus,
        unit="utterance",
        batch_size=12,
        max_tokens_per_micro_batch=112,
        sampling_seed=3,
        fixed_shapes=is_compiled,
    )
    trunks = []
    callback = DifferentialPrivacy(
        PrivacyArguments(
            target_epsilon=8.0,
            delta=1e-3,
            accountant="rdp",
            seed=5,
            stage="fit",
            ledger_path=str(folder / "ledger.jsonl"),
        )
    )
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[callback] if is_private else [], default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, logger=False,
        num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    model.on_train_end = lambda: trunks.append(model.run_trunk)  # type: ignore[method-assign]
    trainer.fit(model, data)
    assert isinstance(trunks[0], CompiledFunction) == (is_compiled and is_private)
    assert not isinstance(model.run_trunk, CompiledFunction), "the module lets go of it after the fit"
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("is_private", [pytest.param(True, marks=pytest.mark.slow), False])
def test_compiled_training_gives_the_same_weights(
    tmp_path: Path, tiny_model: str, corpus: str, is_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CausalLM, "compile_backend", "aot_eager")
    expected = trained(tmp_path / "eager", tiny_model, corpus, is_compiled=False, is_private=is_private)
    found = trained(tmp_path / "compiled", tiny_model, corpus, is_compiled=True, is_private=is_private)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_shapes_that_vary_are_refused(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    model = UtteranceLM(base_model=tiny_model, compile=True)
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_checkpointing=False)
    with pytest.raises(UserError, match="fixed_shapes"):
        trainer.fit(model, DialogueDataModule(corpus, unit="utterance", batch_size=12))


def test_checkpointed_activations_are_refused(tiny_model: str) -> None:
    with pytest.raises(UserError, match="activation_checkpointing.*compile"):
        UtteranceLM(base_model=tiny_model, compile=True, activation_checkpointing=True)

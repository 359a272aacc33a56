"""One model of trees and of utterances given a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.synthetic_writer import SyntheticWriter
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.prompt_data_module import PromptDataModule
from doppel.errors import UserError
from doppel.privacy.arguments import PrivacyArguments
from doppel.privacy.ledger import Ledger
from doppel.privacy.noise import GaussianNoise
from lightning_modules.causal_lm import CausalLM
from lightning_modules.generation import SamplingArguments
from lightning_modules.parse2utterance import Parse2Utterance
from lightning_modules.parse_tree_lm import ParseTreeLM
from lightning_modules.shared_lm import SharedLM

pytestmark = pytest.mark.filterwarnings("ignore")


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1.0)


def fit(folder: Path, model: CausalLM, data: DialogueDataModule, callbacks: list[Callback] | None = None) -> Trainer:
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=callbacks,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(model, data)
    return trainer


def weights(model: CausalLM) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.model.parameters()])


def test_a_step_is_the_mean_of_the_two_models_steps(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    """With every unit in the only batch, the gradient is the mean of the gradients of p(y) and of p(x|y)."""
    moved = {}
    for model in (m(base_model=tiny_model, optimizer=sgd) for m in (SharedLM, ParseTreeLM, Parse2Utterance)):
        start = weights(model)
        fit(tmp_path / type(model).__name__, model, DialogueDataModule(corpus, batch_size=60))
        moved[type(model).__name__] = weights(model) - start
    mean = (moved["ParseTreeLM"] + moved["Parse2Utterance"]) / 2
    torch.testing.assert_close(moved["SharedLM"], mean, rtol=1e-4, atol=1e-6)
    assert mean.norm() > 0.1


def test_both_rows_of_a_unit_are_clipped_together_and_the_ledger_tells_their_number(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two data sets that differ by one user with 30 turns; with neither noise nor sampling, one step on all units."""
    rows = [{"utterance": f"call {i}", "parse": f'(Call "{i}")', "unit": f"user-{i % 4}"} for i in range(8)]
    extra = [{"utterance": "again and again", "parse": '(Yield (Again "Ana"))', "unit": "user-9"}] * 30
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    steps = []
    for name, lines in {"without": rows, "with": rows + extra}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        model = SharedLM(base_model=tiny_model, optimizer=sgd)
        start = weights(model)
        units = len({line["unit"] for line in lines})
        data = DialogueDataModule(str(path), unit="user", batch_size=units, max_turns_per_unit=3)  # q = 1
        ledger_path = str(tmp_path / name / "ledger.jsonl")
        callback = DifferentialPrivacy(
            PrivacyArguments(
                target_epsilon=8.0,
                accountant="rdp",
                ledger_path=ledger_path,
                max_grad_norm=0.05,
                delta=1e-3,
                scope="shared",
                seed=1,
            )
        )
        fit(tmp_path / name, model, data, [callback])
        steps.append((weights(model) - start) * units)
    assert callback.spec is not None and callback.spec.max_rows_per_unit == 6
    assert 0.045 < (steps[1] - steps[0]).norm() <= 0.05 * (1 + 1e-5)
    (mechanism,) = Ledger(ledger_path).summary()["mechanisms"]
    assert (mechanism["max_rows_per_unit"], mechanism["done_steps"]) == (6, 1)


def test_the_trained_model_samples_as_either_of_the_two(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    """Weights, streams and formats are those of ParseTreeLM and Parse2Utterance, so the samples are theirs."""
    trainer = fit(tmp_path, SharedLM(base_model=tiny_model), DialogueDataModule(corpus, batch_size=20))
    checkpoint = str(tmp_path / "last.ckpt")
    trainer.save_checkpoint(checkpoint)
    trees = tmp_path / "trees.jsonl"
    trees.write_text('{"parse": "(Yield (Find (Today)))"}\n{"parse": "(PleasantryAnythingElseCombined)"}\n')
    sampling = SamplingArguments(max_new_tokens=6, redraws=None)

    def sample(model: CausalLM, name: str, prompts_path: str | None) -> list[dict[str, Any]]:
        output = tmp_path / f"{name}.jsonl"
        predictor = Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            callbacks=[SyntheticWriter(str(output), stage="test")],
        )
        data = PromptDataModule(prompts_path, num_samples=None if prompts_path else 4)
        predictor.predict(model, data, ckpt_path=checkpoint, return_predictions=False)
        return [json.loads(line) for line in output.read_text().splitlines()]

    for task, single, prompts in (("tree", ParseTreeLM, None), ("utterance", Parse2Utterance, str(trees))):
        shared = SharedLM(task=task, base_model=tiny_model, sampling=sampling)  # type: ignore[arg-type]
        found = sample(shared, f"shared_{task}", prompts)
        assert found == sample(single(base_model=tiny_model, sampling=sampling), f"single_{task}", prompts)
        assert all(line["parse"] is not None for line in found)
        assert all((line["utterance"] is None) == (task == "tree") for line in found)
    for prompts_path in (None, str(trees)):
        with pytest.raises(UserError, match="task to tree or to utterance"):
            sample(SharedLM(base_model=tiny_model, sampling=sampling), "both", prompts_path)

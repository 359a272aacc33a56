"""The private training step, through Lightning: equalities, refusals, and what must not leave the process."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from private_training import STEP_6, Crash, CrashAt, data_module, fit, privacy, sgd, weights

from callbacks.differential_privacy import PrivateTrainingError
from callbacks.requirements import refusals
from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch
from datamodules.data_module import DataModule
from doppel.errors import UserError
from doppel.privacy import plan as plans
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.sampling import PoissonSampler
from doppel.privacy.spec import usual_batch_size
from lightning_modules.causal_lm import Parse2Utterance, UtteranceLM
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.strategy import LogicalBatchDDPStrategy

pytestmark = pytest.mark.filterwarnings("ignore")


def test_without_noise_and_clipping_it_is_plain_training(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    start = weights(plain)
    fit(tmp_path / "plain", plain, data_module(corpus), [])
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    callback = privacy(tmp_path)
    private = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    monkeypatch.setattr(
        "doppel.privacy.private_step.PerSampleClipper",
        lambda model, max_grad_norm: PerSampleClipper(model, max_grad_norm=math.inf),
    )
    fit(tmp_path / "private", private, data_module(corpus), [callback])
    moved = (weights(plain) - start).norm()
    assert moved > 0.1
    assert (weights(private) - weights(plain)).norm() < 1e-4 * moved  # float32, in an order that the processor chooses


def test_micro_batch_size_does_not_change_the_weights(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    results = []
    for budget in (40, 4096):
        model = Parse2Utterance(base_model=tiny_model, optimizer=sgd)
        folder = tmp_path / str(budget)
        fit(folder, model, data_module(corpus, max_tokens_per_micro_batch=budget), [privacy(folder)])
        results.append(weights(model))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-6)


def test_two_optimisers_are_refused_without_privacy_too(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Two(UtteranceLM):
        def configure_optimizers(self) -> Any:
            return [sgd(half) for half in (list(self.parameters())[:2], list(self.parameters())[2:])]

    for callbacks in ([], [privacy(tmp_path)]):
        with pytest.raises(UserError, match="gives 2 optimisers"):
            fit(tmp_path, Two(base_model=tiny_model, optimizer=sgd), data_module(corpus), callbacks)


def test_checkpointing_activations_does_not_change_the_weights(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    results = []
    for checkpointed in (False, True):
        model = UtteranceLM(base_model=tiny_model, optimizer=sgd, activation_checkpointing=checkpointed)
        folder = tmp_path / str(checkpointed)
        fit(folder, model, data_module(corpus, unit="dialogue", batch_size=4), [privacy(folder)], max_epochs=1)
        results.append(weights(model))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_dialogue_unit_is_accounted_and_trained(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    callback = privacy(tmp_path)
    fit(tmp_path, model, data_module(corpus, unit="dialogue", batch_size=4), [callback])
    assert callback.spec is not None
    assert (callback.spec.budget.unit, callback.spec.num_units) == ("dialogue", 20)
    assert callback.spec.sample_rate == 0.2


@pytest.mark.parametrize("num_units", [1, 19, 20, 39, 40, 874, 133_584])
def test_the_usual_batch_is_a_twentieth_of_the_units_and_never_none(num_units: int) -> None:
    batch_size = usual_batch_size(num_units)
    assert 1 <= batch_size <= max(1, num_units / 20) < batch_size + 1


def test_a_batch_size_that_follows_from_the_units_is_the_one_sampled_accounted_and_gone_on_with(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 units and no batch size: everything is as with three a step, to the last bit."""
    samplers: list[PoissonSampler] = []
    poisson = DataModule.poisson

    def kept(self: DataModule, *arguments: Any) -> PoissonSampler:
        samplers.append(poisson(self, *arguments))
        return samplers[-1]

    monkeypatch.setattr(DataModule, "poisson", kept)

    def run(name: str, batch_size: int | None, extra: list[Callback], ckpt: str | None = None) -> tuple[Any, Any]:
        folder = tmp_path / name
        model, callback = UtteranceLM(base_model=tiny_model, optimizer=sgd), privacy(folder)
        callbacks = [*extra, callback, _checkpoints(folder)]
        data = data_module(corpus, batch_size=batch_size)
        fit(folder, model, data, callbacks, max_epochs=1, enable_checkpointing=True, ckpt_path=ckpt)
        (mechanism,) = Ledger(folder / "ledger.jsonl").summary()["mechanisms"]
        return weights(model), mechanism

    given, theirs = run("given", 3, [])
    derived, ours = run("derived", None, [])
    assert (ours["batch_size"], ours["num_units"], ours["done_steps"]) == (3, 60, 20)
    assert ours["sample_rate"] == samplers[-1].sample_rate == theirs["sample_rate"] == 3 / 60
    assert ours["noise_multiplier"] == theirs["noise_multiplier"] and torch.equal(given, derived)
    with pytest.raises(Crash):
        run("broken", None, [CrashAt(6)])
    resumed, gone_on = run("broken", None, [], str(tmp_path / "broken" / "step=6.ckpt"))
    assert torch.equal(resumed, given) and gone_on["sample_rate"] == 3 / 60


def _checkpoints(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    def run(folder: Path, extra: list[Callback], ckpt_path: str | None = None) -> tuple[Any, Trainer, Any]:
        model = UtteranceLM(base_model=tiny_model)  # AdamW: its state must survive too
        callback = privacy(folder)
        trainer = fit(
            folder,
            model,
            data_module(corpus),
            [*extra, callback, _checkpoints(folder)],
            enable_checkpointing=True,
            ckpt_path=ckpt_path,
        )
        return model, trainer, callback

    whole, whole_trainer, _ = run(tmp_path / "whole", [])
    broken = tmp_path / "broken"
    with pytest.raises(Crash):
        run(broken, [CrashAt(3)])
    resumed, resumed_trainer, _ = run(broken, [], str(broken / "step=3.ckpt"))
    assert resumed_trainer.global_step == whole_trainer.global_step == 10
    assert torch.equal(weights(resumed), weights(whole))
    epsilons = [Ledger(tmp_path / name / "ledger.jsonl").epsilon("default") for name in ("whole", "broken")]
    assert epsilons[0] == epsilons[1]


def test_a_callback_that_went_on_once_begins_anew_without_a_checkpoint(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    def run(*callbacks: Callback, **options: Any) -> Trainer:
        return fit(tmp_path, UtteranceLM(base_model=tiny_model), data_module(corpus), [*callbacks], **options)

    with pytest.raises(Crash):
        run(CrashAt(3), privacy(tmp_path), _checkpoints(tmp_path), enable_checkpointing=True)
    callback = privacy(tmp_path)
    assert run(callback, ckpt_path=str(tmp_path / "step=3.ckpt")).global_step == 10
    with pytest.raises(BudgetExceededError, match="begins without a checkpoint"):  # it looked for a file "None"
        run(callback)


@pytest.mark.parametrize("rounding", [-1e-9, 1e-9])
def test_a_run_goes_on_with_its_noise_where_another_processor_rounds_otherwise(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, rounding: float
) -> None:
    def run(extra: list[Callback], ckpt_path: str | None = None) -> Any:
        callback = privacy(tmp_path)
        callbacks = [*extra, callback, _checkpoints(tmp_path)]
        model, data = UtteranceLM(base_model=tiny_model), data_module(corpus)
        trainer = fit(tmp_path, model, data, callbacks, enable_checkpointing=True, ckpt_path=ckpt_path)
        return callback, trainer

    with pytest.raises(Crash):
        run([CrashAt(3)])
    (begun,) = Ledger(tmp_path / "ledger.jsonl").mechanisms.values()
    found = plans.calibrate
    monkeypatch.setattr(plans, "calibrate", lambda *given: 1.001 * found(*given))
    with pytest.raises(PrivateTrainingError, match="noise_multiplier"):
        run([], str(tmp_path / "step=3.ckpt"))
    # 1.3e-10 between processors with and without AVX-512
    monkeypatch.setattr(plans, "calibrate", lambda *given: (1 + rounding) * found(*given))
    resumed, trainer = run([], str(tmp_path / "step=3.ckpt"))
    assert trainer.global_step == 10
    assert resumed.spec == resumed.session.plan and resumed.spec.noise_multiplier == begun.key[1]


def test_a_run_that_goes_on_from_the_end_of_an_epoch_takes_every_step(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    def run(extra: list[Callback], ckpt_path: str | None = None) -> Trainer:
        every_epoch = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_epochs=1, save_top_k=-1)
        callbacks = [*extra, privacy(tmp_path), every_epoch]
        model, data = UtteranceLM(base_model=tiny_model), data_module(corpus)
        return fit(tmp_path, model, data, callbacks, max_epochs=3, enable_checkpointing=True, ckpt_path=ckpt_path)

    with pytest.raises(Crash):
        run([CrashAt(7)])
    trainer = run([], str(tmp_path / "step=5.ckpt"))
    assert Ledger(tmp_path / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"] == 15
    assert trainer.global_step == 15 - 2  # the steps that were lost stay spent


@pytest.mark.parametrize(
    "limits",
    [
        ({"max_steps": 2}, {"max_steps": 7}, {"max_steps": 10}, {}),
        ({"limit_train_batches": 2}, {"limit_train_batches": 2}, {}),  # the same command again is done
    ],
    ids=["max_steps", "limit_train_batches"],
)
def test_a_training_that_a_limit_has_cut_takes_the_rest_of_its_steps(
    tmp_path: Path, tiny_model: str, corpus: str, limits: tuple[dict[str, int], ...]
) -> None:
    """Lightning counts an epoch of which two steps were taken as one that is over."""
    steps = []
    for number, limit in enumerate(limits):
        last = ModelCheckpoint(dirpath=tmp_path, save_last=True, save_top_k=0)
        given = {"max_epochs": 3, "enable_checkpointing": True, "ckpt_path": "last" if number else None, **limit}
        model, data = UtteranceLM(base_model=tiny_model), data_module(corpus)
        steps.append(fit(tmp_path, model, data, [privacy(tmp_path), last], **given).global_step)
        assert Ledger(tmp_path / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"] == steps[-1]
    assert steps == ([2, 7, 10, 15] if len(limits) == 4 else [6, 6, 15])


def test_rolled_back_steps_stay_spent(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    def run(extra: list[Callback], ckpt_path: str | None = None) -> Trainer:
        model = UtteranceLM(base_model=tiny_model)
        callbacks = [*extra, privacy(tmp_path), _checkpoints(tmp_path)]
        return fit(tmp_path, model, data_module(corpus), callbacks, enable_checkpointing=True, ckpt_path=ckpt_path)

    with pytest.raises(Crash):
        run([CrashAt(5)])
    trainer = run([], str(tmp_path / "step=3.ckpt"))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    done = ledger.summary()["mechanisms"][0]["done_steps"]
    assert done == trainer.global_step + 2
    assert ledger.epsilon("default") <= 8.0


def test_training_ends_with_the_budget_and_no_callback_prolongs_it(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    class Longer(Callback):
        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            trainer.fit_loop.epoch_loop.max_steps = 100

    def run(folder: Path, extra: list[Callback]) -> Trainer:
        return fit(folder, UtteranceLM(base_model=tiny_model), data_module(corpus), [*extra, privacy(folder)])

    for folder in (tmp_path / "as it is", tmp_path / "longer"):
        with pytest.raises(Crash):
            run(folder, [CrashAt(5)])
    ledger = Ledger(tmp_path / "as it is" / "ledger.jsonl")
    room = ledger.remaining("default/fit")
    assert run(tmp_path / "as it is", []).global_step == room < 10
    with pytest.raises(BudgetExceededError):
        run(tmp_path / "longer", [Longer()])
    other = Ledger(tmp_path / "longer" / "ledger.jsonl")
    assert other.mechanisms["default/fit"].done_steps == ledger.mechanisms["default/fit"].done_steps == 5 + room
    assert other.epsilon("default") <= 8.0


def test_a_training_that_lost_steps_leaves_room_for_the_histogram_of_its_plan(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    def run(*extra: Callback) -> Trainer:
        callbacks = [*extra, privacy(tmp_path, delta=1e-3, histogram_noise_multiplier=0.7)]
        return fit(tmp_path, UtteranceLM(base_model=tiny_model), data_module(corpus), callbacks)

    with pytest.raises(Crash):
        run(CrashAt(5))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    everything = ledger.remaining("default/fit")
    steps = run().global_step
    assert 0 < steps < everything, "nothing is left for the histogram"
    assert (
        compute_epsilon([*(own.mechanism() for own in ledger.spent("default")), Mechanism(1.0, 0.7, 1)], 1e-3, "rdp")
        <= 8.0
    )


def test_empty_batch_takes_a_noise_only_step(tmp_path: Path, tiny_model: str) -> None:
    class Empty(LightningDataModule):
        num_units, batch_size, sample_rate, unit = 100, 10, 0.1, "utterance"
        sampling, data_fingerprint = "poisson", "empty"
        max_rows_per_unit = privacy_caveat = None

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader([LogicalBatch([], 0, 10.0)] * 10, batch_size=None)

    model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    start = weights(model)
    callback = privacy(tmp_path, max_grad_norm=1.0)
    trainer = fit(tmp_path, model, Empty(), [callback], max_epochs=1)
    assert trainer.global_step == 10
    assert callback.spec is not None
    moved = weights(model) - start
    expected = 0.5 * callback.spec.noise_multiplier / 10 * math.sqrt(10)
    assert moved.std().item() == pytest.approx(expected, rel=0.05)


def half_precision() -> MixedPrecision:
    """What Lightning makes of `precision: 16-mixed` on a GPU; for the CPU it would take bfloat16."""
    return MixedPrecision("16-mixed", "cpu")


def test_a_private_fp16_run_is_the_fp32_run_up_to_rounding(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    moved, dtypes = {}, set()
    for name, plugins in {"fp32": [], "fp16": [half_precision()]}.items():
        model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
        model.model.transformer.h[0].attn.c_attn.register_forward_hook(lambda *args: dtypes.add(args[-1].dtype))
        start = weights(model)
        callback = privacy(tmp_path / name, max_grad_norm=1.0, target_epsilon=50.0)
        trainer = fit(tmp_path / name, model, data_module(corpus), [callback], plugins=plugins)
        assert trainer.scaler is None
        moved[name] = weights(model) - start
    assert dtypes == {torch.float32, torch.float16}
    assert (moved["fp16"] - moved["fp32"]).norm() < 5e-3 * moved["fp32"].norm()
    assert not torch.equal(moved["fp16"], moved["fp32"])


def test_a_step_is_taken_even_if_no_gradient_is_finite(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    data = data_module(corpus)
    logger = CSVLogger(tmp_path)
    callback = privacy(tmp_path, fp16_loss_scale=2.0**100, log_private_diagnostics=True)
    overflown = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    trainer = fit(tmp_path, overflown, data, [callback], logger=logger, plugins=[half_precision()])
    assert trainer.global_step == 10
    assert Ledger(tmp_path / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"] == 10

    class Nobody(LightningDataModule):
        num_units, batch_size, unit, data_fingerprint, sampling = 60, 12, "utterance", "nobody", "poisson"
        max_rows_per_unit = privacy_caveat = None

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader([LogicalBatch([], 0, 12.0)] * 5, batch_size=None)

    noise_alone = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    fit(tmp_path / "nobody", noise_alone, Nobody(), [privacy(tmp_path / "nobody")])
    assert torch.equal(weights(overflown), weights(noise_alone))
    with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
        counts = [float(row["private/num_nonfinite"]) for row in csv.DictReader(file) if row["private/num_nonfinite"]]
    data.trainer = None
    data.text_format = overflown.text_format
    sampled = [batch.num_units for batch in data.train_dataloader()]  # of the first epoch
    assert counts == sorted(counts)
    assert counts[4] == sum(sampled) > 0


def test_an_ordinary_fp16_run_keeps_its_gradient_scaler(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    moved = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # the default scale of 65,536 skips the first steps
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", scaler)]):
        model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
        start = weights(model)
        trainer = fit(tmp_path, model, data_module(corpus), [], plugins=plugins)
        moved.append(weights(model) - start)
    assert trainer.scaler is scaler
    assert (moved[1] - moved[0]).norm() < 2e-2 * moved[0].norm()


def test_an_ordinary_fp16_run_may_start_with_an_empty_batch(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Late(LightningDataModule):
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader([LogicalBatch([], 0, 12.0)] * 2, batch_size=None)

    model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    start = weights(model)
    assert fit(tmp_path, model, Late(), [], max_epochs=1, plugins=[half_precision()]).global_step == 2
    assert torch.equal(weights(model), start)


@pytest.mark.parametrize("truncate", [False, True])
def test_a_unit_with_many_rows_moves_the_gradient_by_at_most_the_clipping_norm(
    tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, truncate: bool
) -> None:
    """Two data sets that differ by one user with 30 rows; with neither noise nor sampling, one step on all units.

    Their rows, or what they are cut to.
    """
    rows = [{"utterance": f"call number {i}", "unit": f"user-{i % 4}"} for i in range(8)]
    extra = [{"utterance": "the same words again and again " * (40 if truncate else 1), "unit": "user-9"}] * 30
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    steps = []
    for name, lines in {"without": rows, "with": rows + extra}.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        model = UtteranceLM(base_model=tiny_model, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
        start = weights(model)
        units = len({line["unit"] for line in lines})  # q = 1
        bounds: dict[str, Any] = {"max_turns_per_unit": 3, "unit_names": "exact", "truncate": truncate}
        data = data_module(str(path), unit="user", batch_size=units, **bounds)
        callback = privacy(tmp_path / name, max_grad_norm=0.05, delta=1e-3)
        fit(tmp_path / name, model, data, [callback], max_epochs=1)
        steps.append((weights(model) - start) * units)
    assert callback.spec is not None
    assert (callback.spec.budget.unit, callback.spec.max_rows_per_unit) == ("user", 3)
    assert 0.045 < (steps[1] - steps[0]).norm() <= 0.05 * (1 + 1e-5)
    scope = Ledger(tmp_path / "with" / "ledger.jsonl").summary()["scopes"]["default"]
    assert "one user (all their requests, however many; each step uses at most 3 of them" in scope["protects"]


def test_ledger_holds_every_step_and_a_full_one_is_refused(own_private_run: Path, tiny_model: str, corpus: str) -> None:
    before = (own_private_run / "ledger.jsonl").read_text()
    ledger = Ledger(own_private_run / "ledger.jsonl")
    assert ledger.summary()["mechanisms"][0]["done_steps"] == 10
    assert 7.0 < ledger.epsilon("default") <= 8.0
    callback, data = privacy(own_private_run, seed=None), data_module(corpus, sampling_seed=None)
    with pytest.raises(BudgetExceededError, match="'default'"):
        fit(own_private_run, UtteranceLM(base_model=tiny_model), data, [callback])
    assert (own_private_run / "ledger.jsonl").read_text() == before


def test_two_stages_share_one_noise_multiplier_and_one_budget(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    multipliers = []
    for stage, epochs in (("trees", 1), ("utterances", 3)):
        callback = privacy(tmp_path, stage=stage, epochs=[1, 3], scope="two_stage")
        fit(tmp_path, UtteranceLM(base_model=tiny_model), data_module(corpus), [callback], max_epochs=epochs)
        assert callback.spec is not None
        multipliers.append(callback.spec.noise_multiplier)
    assert multipliers[0] == multipliers[1]
    summary = Ledger(tmp_path / "ledger.jsonl").summary()
    assert summary["scopes"]["two_stage"]["steps_done"] == 20
    assert 7.0 < summary["scopes"]["two_stage"]["epsilon_of_mechanisms"] <= 8.0  # void, for its seeds are fixed


def test_resuming_under_another_specification_is_refused(own_private_run: Path, tiny_model: str, corpus: str) -> None:
    callbacks, model = [privacy(own_private_run, target_epsilon=4.0)], UtteranceLM(base_model=tiny_model)
    with pytest.raises(PrivateTrainingError, match="target_epsilon"):
        fit(own_private_run, model, data_module(corpus), callbacks, ckpt_path=str(own_private_run / STEP_6))


def test_resuming_with_a_row_more_is_told_as_that(
    own_private_run: Path, tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(Path(corpus).read_text() + '{"utterance": "one more", "parse": "(Yield (Today))", "unit": "new"}\n')
    with pytest.raises(UserError, match="has another number of units than when this training began: put it back"):
        fit(
            own_private_run,
            UtteranceLM(base_model=tiny_model, optimizer=torch.optim.AdamW),
            data_module(str(more), sampling_seed=None),
            [privacy(own_private_run, seed=None)],
            ckpt_path=str(own_private_run / STEP_6),
        )


@pytest.mark.parametrize(
    ("trainer", "data", "message"),
    [
        ({"accumulate_grad_batches": 2}, {}, "accumulate_grad_batches"),
        ({"gradient_clip_val": 1.0}, {}, "gradient_clip_val"),
        ({"overfit_batches": 1}, {}, "overfit_batches"),
        ({"detect_anomaly": True}, {}, "detect_anomaly"),
        ({"precision": "bf16-true"}, {}, "precision bf16-true"),
        ({"precision": "16-true"}, {}, "precision 16-true"),
        ({}, {"sampling": "shuffle"}, "Poisson"),
        ({"devices": 1, "strategy": DDPStrategy(process_group_backend="gloo")}, {}, "ddp_logical"),
    ],
)
def test_what_breaks_the_guarantee_is_refused_by_name(
    tmp_path: Path, tiny_model: str, corpus: str, trainer: dict[str, Any], data: dict[str, Any], message: str
) -> None:
    callback = privacy(tmp_path)
    made = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback], **trainer)
    made.datamodule = data_module(corpus, **data)  # type: ignore[attr-defined]
    with pytest.raises(PrivateTrainingError, match=message) as error:
        callback.setup(made, UtteranceLM(base_model=tiny_model), "fit")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "name", "value", "named"),
    [
        (torch, "set_float32_matmul_precision", "high", "cuda.matmul.fp32_precision is 'tf32'"),
        (torch, "set_float32_matmul_precision", "medium", "mkldnn.matmul.fp32_precision is 'bf16'"),
        (torch.backends.cuda.matmul, "allow_tf32", True, "cuda.matmul.fp32_precision is 'tf32'"),
        (torch.backends.cuda.matmul, "fp32_precision", "tf32", "cuda.matmul.fp32_precision is 'tf32'"),
        (torch.backends.mkldnn.matmul, "fp32_precision", "bf16", "mkldnn.matmul.fp32_precision is 'bf16'"),
        (torch.backends, "fp32_precision", "tf32", "torch.backends.fp32_precision is 'tf32'"),
        (torch.backends.cuda.matmul, "allow_fp16_accumulation", True, "allow_fp16_accumulation is set"),
        (torch.backends.cuda.matmul, "fp32_precision", "ieee", None),
    ],
)
def test_products_of_fewer_bits_than_the_clipping_norms_allow_for_are_refused(
    tmp_path: Path, place: Any, name: str, value: Any, named: str | None
) -> None:
    callback = privacy(tmp_path)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback])
    trainer.datamodule = _FixedBatches()  # type: ignore[attr-defined]
    try:
        getattr(place, name)(value) if place is torch else setattr(place, name, value)
        found = " ".join(refusals(trainer, LogicalBatchModule()))
        assert (
            re.search(f"{named}.*products are rounded.*leave out what sets it", found)
            if named
            else "rounded" not in found
        )
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
        torch.set_float32_matmul_precision("highest")
        for reset in (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
            reset.fp32_precision = "none"  # type: ignore[attr-defined]
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cuda.matmul.allow_tf32


def test_nothing_private_and_no_seed_is_written(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: list[bytes] = []
    share = GaussianNoise.share_secret

    def listen(noise: GaussianNoise, broadcast: Callable[[torch.Tensor], torch.Tensor]) -> None:
        share(noise, lambda own: (secrets.append(bytes(own.tolist())), broadcast(own))[1])

    monkeypatch.setattr(GaussianNoise, "share_secret", listen)
    logger = CSVLogger(tmp_path)
    callbacks = [privacy(tmp_path, seed=None), _checkpoints(tmp_path)]
    data = data_module(corpus, val_path=corpus)
    fit(
        tmp_path,
        UtteranceLM(base_model=tiny_model),
        data,
        callbacks,
        logger=logger,
        enable_checkpointing=True,
    )
    (secret,) = secrets
    assert len(secret) >= 16
    needles = [secret, secret.hex().encode(), str(int.from_bytes(secret)).encode()]
    needles += [str(int.from_bytes(secret, "little")).encode(), b"lunch with Ana"]
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) >= 4
    for path in files:
        content = path.read_bytes()
        assert not any(needle in content for needle in needles), path
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0]
    assert "dp/epsilon" in header
    assert not any(word in header for word in ("loss", "norm", "nonfinite", "private"))


def test_private_diagnostics_are_opt_in_and_labelled(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    logger = CSVLogger(tmp_path)
    callback = privacy(tmp_path, log_private_diagnostics=True)
    data = data_module(corpus, val_path=corpus)
    fit(tmp_path, UtteranceLM(base_model=tiny_model), data, [callback], logger=logger)
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    losses = [name for name in header if "loss" in name]
    assert losses
    assert all(name.startswith("private/") for name in losses)
    caveats = Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["caveats"]
    assert any("private/" in text for text in caveats), "whoever reads the card is told, whatever config.yaml says"


class _FixedBatches(LightningDataModule):
    """Five logical batches of eight rows, split over the ranks."""

    num_units, batch_size, sample_rate, unit = 40, 8, 0.2, "utterance"
    sampling, data_fingerprint = "poisson", "fixed"
    max_rows_per_unit = privacy_caveat = None

    def train_dataloader(self) -> Any:
        rank, world = self.trainer.global_rank, self.trainer.world_size
        generator = torch.Generator().manual_seed(0)
        batches = []
        for step in range(5):
            ids = torch.randint(3, 200, (8, 12), generator=generator)
            rows = ids[rank::world] if step != 2 else ids[: (0 if rank else 8)]  # at step 2 one rank is empty
            labels = rows.clone()
            labels[:, :2] = IGNORE_INDEX
            parts = [MicroBatch(r, lab, len(r)) for r, lab in zip(rows.split(3), labels.split(3), strict=True)]
            batches.append(LogicalBatch([p for p in parts if p.num_units], len(rows), 8.0))
        return torch.utils.data.DataLoader(batches, batch_size=None)


@pytest.mark.ddp
@pytest.mark.parametrize(
    ("num_ranks", "sampled"),
    [(2, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, False), (4, True)))],
)
def test_several_ranks_give_the_model_of_one(
    tmp_path: Path, tiny_model: str, corpus: str, num_ranks: int, sampled: bool
) -> None:
    """Over 20 steps with noise; the batches fixed, one of them empty on a rank, or Poisson samples dealt out.

    The samples have no size of their own: every rank takes a twentieth of the units.
    """
    seed_everything(0)
    results, epsilons = [], []
    for name, kwargs in {
        "one": {},
        "several": {
            "devices": num_ranks,
            "strategy": LogicalBatchDDPStrategy(start_method="fork", process_group_backend="gloo"),
        },
    }.items():
        model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
        data, epochs = (data_module(corpus, batch_size=None), 1) if sampled else (_FixedBatches(), 4)
        callback = privacy(tmp_path / name)
        fit(tmp_path / name, model, data, [callback], max_epochs=epochs, **kwargs)
        results.append(weights(model))
        epsilons.append(Ledger(tmp_path / name / "ledger.jsonl").epsilon("default"))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-6)
    assert epsilons[0] == epsilons[1]
    mechanism = json.dumps(Ledger(tmp_path / "several" / "ledger.jsonl").summary()["mechanisms"])
    assert '"done_steps": 20' in mechanism

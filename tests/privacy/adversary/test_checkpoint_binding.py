"""The attacker goes on from a checkpoint where another ledger pays, where no noise is added, or where nobody paid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint
from private_training import STEP_6, data_module, fit, privacy
from run_folders import write_ledger

from callbacks.differential_privacy import PrivateTrainingError
from doppel.errors import UserError
from doppel.privacy.checkpoint import privacy_state, read_checkpoint, weights_fingerprint
from doppel.privacy.ledger import Ledger, LedgerError
from doppel.privacy.spec import DPPlan, PrivacyBudget
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def train(folder: Path, model: str, corpus: str, callbacks: list[Callback], ckpt_path: Path | None = None) -> None:
    keeper = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    given = None if ckpt_path is None else str(ckpt_path)
    lm, callbacks = UtteranceLM(base_model=model), [*callbacks, keeper]
    fit(folder, lm, data_module(corpus), callbacks, enable_checkpointing=True, ckpt_path=given)


@pytest.fixture
def run(own_private_run: Path) -> Path:
    return own_private_run


def test_a_checkpoint_carries_mechanism_scope_steps_and_the_ledger(run: Path) -> None:
    checkpoint = read_checkpoint(run / STEP_6)
    state = privacy_state(checkpoint)
    assert state is not None
    assert (state["mechanism_id"], state["scope"], state["num_steps"]) == ("default/fit", "default", 6)
    ledger = Ledger(run / "ledger.jsonl")
    assert ledger.gap(state, weights_fingerprint(checkpoint["state_dict"])) is None
    assert state["ledger"]["identity"] == ledger.anchor["identity"]


def _another_run(folder: Path) -> None:
    """The ledger of a run of as many steps of the same mechanism."""
    state: Any = privacy_state(read_checkpoint(folder / STEP_6))
    terms = dict(state["spec"])
    budget = PrivacyBudget(*(terms.pop(name) for name in ("target_epsilon", "delta", "accountant", "unit")))
    plan = DPPlan(budget, expected_batch_size=terms.pop("batch_size"), **terms)
    recorded = Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]
    other = Ledger(folder / "other" / "ledger.jsonl")
    name = other.open_mechanism(
        scope="default",
        stage="fit",
        spec=plan,
        planned_steps=10,
        data_fingerprint=recorded["data_fingerprint"],
    )
    for _ in range(9):
        other.spend(name)
    for end in ("", ".head"):
        shutil.copy(f"{other.path}{end}", f"{folder / 'ledger.jsonl'}{end}")


def _deleted(folder: Path) -> None:
    for file in folder.glob("ledger.jsonl*"):
        file.unlink()


def _emptied(folder: Path) -> None:
    (folder / "ledger.jsonl").write_text("")


def _cut(folder: Path) -> None:
    """Its last eight lines and the head are gone: two steps are left."""
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-8]))
    (folder / "ledger.jsonl.head").unlink()


@pytest.mark.parametrize(
    ("attack", "error", "said"),
    [
        (_deleted, PrivateTrainingError, "paid from another ledger"),
        (_emptied, LedgerError, "lines are gone"),
        (_cut, PrivateTrainingError, "no longer holds the line that was its last"),
        (_another_run, PrivateTrainingError, "paid from another ledger"),
    ],
)
def test_steps_that_the_ledger_does_not_show_are_not_gone_on_from(
    run: Path, tiny_model: str, corpus: str, attack: Callable[[Path], None], error: type[UserError], said: str
) -> None:
    attack(run)
    with pytest.raises(error, match=said) as refused:
        train(run, tiny_model, corpus, [privacy(run)], run / STEP_6)
    assert "\n" not in str(refused.value)


def test_another_scope_or_stage_does_not_take_over_a_checkpoint(run: Path, tiny_model: str, corpus: str) -> None:
    checkpoint = Path(shutil.copy(run / STEP_6, run / "kept.ckpt"))
    train(run, tiny_model, corpus, [privacy(run, scope="other")])  # which has paid for ten steps of its own
    for change in ({"scope": "other"}, {"stage": "other"}):
        with pytest.raises(PrivateTrainingError, match="default/fit"):
            train(run, tiny_model, corpus, [privacy(run, **change)], checkpoint)


def test_another_run_folder_does_not_take_over_a_checkpoint(
    run: Path, tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    with pytest.raises(PrivateTrainingError, match=r"new.ledger\.jsonl"):
        train(tmp_path / "new", tiny_model, corpus, [privacy(tmp_path / "new")], run / STEP_6)


def test_a_private_checkpoint_does_not_go_on_without_privacy(run: Path, tiny_model: str, corpus: str) -> None:
    before = (run / "ledger.jsonl").read_bytes()
    with pytest.raises(UserError, match="may not go on without privacy"):
        train(run, tiny_model, corpus, [], run / STEP_6)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_a_checkpoint_without_privacy_does_not_go_on_under_a_claim(
    tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    train(tmp_path, tiny_model, corpus, [])
    with pytest.raises(PrivateTrainingError, match="ckpt_path"):
        train(tmp_path, tiny_model, corpus, [privacy(tmp_path)], tmp_path / "step=6.ckpt")
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("is_public", [False, None, True])
def test_weights_of_the_same_people_are_no_start_under_a_claim(
    tiny_model: str, corpus: str, tmp_path: Path, is_public: bool | None
) -> None:
    def run(folder: Path, callbacks: list[Callback], start: Path | None) -> None:
        data = data_module(corpus)
        data.is_public = is_public
        model = UtteranceLM(base_model=tiny_model, init_weights=None if start is None else str(start))
        trainer = fit(folder, model, data, callbacks, max_epochs=1)
        trainer.save_checkpoint(folder / "last.ckpt")

    run(tmp_path / "plain", [], None)
    start, callback = tmp_path / "plain" / "last.ckpt", privacy(tmp_path, seed=None)
    if is_public is False:
        with pytest.raises(PrivateTrainingError, match="data.is_public"):
            run(tmp_path / "private", [callback], start)
        return
    run(tmp_path / "private", [callback], start)
    caveats = " ".join(Ledger(tmp_path / "ledger.jsonl").summary()["scopes"]["default"]["caveats"])
    assert ("nothing says that its data were public" in caveats) == (is_public is None)


def test_weights_that_another_ledger_paid_for_are_a_start_that_is_noted(
    run: Path, tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    for folder, is_noted in ((run, False), (tmp_path / "new", True)):
        model = UtteranceLM(base_model=tiny_model, init_weights=str(run / STEP_6))
        fit(folder, model, data_module(corpus), [privacy(folder, scope="second")], max_epochs=1)
        caveats = " ".join(Ledger(folder / "ledger.jsonl").summary()["scopes"]["second"]["caveats"])
        assert ("whose private training another ledger has paid for" in caveats) == is_noted


def test_a_checkpoint_that_does_not_say_which_ledger_has_paid_is_not_gone_on_from(
    run: Path, tiny_model: str, corpus: str
) -> None:
    path = run / STEP_6
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["callbacks"]["DifferentialPrivacy"]["ledger"]
    torch.save(checkpoint, path)
    with pytest.raises(PrivateTrainingError, match="does not say which ledger has paid"):
        train(run, tiny_model, corpus, [privacy(run)], path)


def exchange_weights(path: Path) -> None:
    """Put other weights into a checkpoint, and leave all else."""
    checkpoint = torch.load(path, weights_only=True)
    state = {name: value + 1 for name, value in checkpoint["state_dict"].items()}
    torch.save({**checkpoint, "state_dict": state}, path)


def forget_weights(folder: Path) -> None:
    """Leave the ledger as an earlier version wrote it; its chains fit, and so do the anchors before the first step."""
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    write_ledger(path, "".join(line for line in lines if json.loads(line)["type"] != "weights"))


def test_every_checkpoint_has_its_weights_in_the_ledger_once_and_the_trial_has_not(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_bytes().splitlines()]
    noted = [(line["steps"], line["fingerprint"]) for line in lines if line["type"] == "weights"]
    files = {n: run / f"fit/checkpoints/{'last' if n == 10 else f'step={n}'}.ckpt" for n in (3, 6, 9, 10)}
    assert noted == [(n, weights_fingerprint(read_checkpoint(file)["state_dict"])) for n, file in files.items()]
    assert all(len(fingerprint) == 64 for _, fingerprint in noted)


def test_other_weights_under_a_paid_checkpoint_are_not_gone_on_from(run: Path, tiny_model: str, corpus: str) -> None:
    exchange_weights(run / STEP_6)
    before = (run / "ledger.jsonl").read_bytes()
    with pytest.raises(PrivateTrainingError, match="its weights are not those that default/fit had after 6 steps"):
        train(run, tiny_model, corpus, [privacy(run)], run / STEP_6)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_other_weights_under_a_paid_checkpoint_are_no_start(run: Path, tiny_model: str, corpus: str) -> None:
    exchange_weights(run / STEP_6)
    model = UtteranceLM(base_model=tiny_model, init_weights=str(run / STEP_6))
    with pytest.raises(PrivateTrainingError, match="its weights are not those that default/fit had after 6 steps"):
        fit(run, model, data_module(corpus), [privacy(run, scope="second")], max_epochs=1)


def test_weights_that_an_earlier_version_saved_are_bound_by_nothing(run: Path) -> None:
    checkpoint = read_checkpoint(run / "fit/checkpoints/step=3.ckpt")
    forget_weights(run)
    state: Any = privacy_state(checkpoint)
    gap = Ledger(run / "ledger.jsonl").gap(state, weights_fingerprint(checkpoint["state_dict"]))
    assert gap is not None and "nothing binds its weights" in gap


def test_averaged_weights_are_bound_as_they_are_on_disk(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    train(tmp_path, tiny_model, corpus, [EMAWeightAveraging(decay=0.9), privacy(tmp_path)])
    checkpoint = read_checkpoint(tmp_path / "step=6.ckpt")
    names = checkpoint["state_dict"].keys()
    assert any(not torch.equal(checkpoint["state_dict"][n], checkpoint["current_model_state"][n]) for n in names)
    state: Any = privacy_state(checkpoint)
    assert Ledger(tmp_path / "ledger.jsonl").gap(state, weights_fingerprint(checkpoint["state_dict"])) is None

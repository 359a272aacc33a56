"""The attacker goes on from a checkpoint where another ledger pays, where no noise is added, or where nobody paid."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint
from private_training import STEP_6, data_module, fit, privacy

from callbacks.differential_privacy import PrivateTrainingError
from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.privacy.checkpoint import privacy_state, read_checkpoint
from doppel.privacy.ledger import Ledger, Released
from doppel.privacy.spec import DPPlan, PrivacyBudget
from lightning_modules.causal_lm import UtteranceLM
from tests.killed import Killed, kill_at

pytestmark = pytest.mark.filterwarnings("ignore")


def train(folder: Path, model: str, corpus: str, callbacks: list[Callback], ckpt_path: Path | None = None) -> None:
    keeper = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    given = None if ckpt_path is None else str(ckpt_path)
    lm, callbacks = UtteranceLM(base_model=model), [*callbacks, keeper]
    fit(folder, lm, data_module(corpus), callbacks, enable_checkpointing=True, ckpt_path=given)


@pytest.fixture
def run(own_private_run: Path) -> Path:
    return own_private_run


def test_a_checkpoint_carries_mechanism_scope_and_steps_and_the_ledger_names_its_file(run: Path) -> None:
    state = privacy_state(read_checkpoint(run / STEP_6))
    assert state is not None
    assert (state["mechanism_id"], state["scope"], state["num_steps"]) == ("default/fit", "default", 6)
    ledger = Ledger(run / "ledger.jsonl")
    assert Released(6, sha256_of(run / STEP_6)) in ledger.releases("default/fit")
    assert ledger.unpaid_reason(sha256_of(run / STEP_6), "default") is None


def _another_run(folder: Path) -> None:
    """The ledger of a run of as many steps of the same mechanism."""
    state: Any = privacy_state(read_checkpoint(folder / STEP_6))
    terms = dict(state["spec"])
    budget = PrivacyBudget(*(terms.pop(name) for name in ("target_epsilon", "delta", "accountant", "unit")))
    plan = DPPlan(budget, expected_batch_size=terms.pop("batch_size"), **terms)
    recorded = Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]
    other = Ledger(folder / "other" / "ledger.jsonl")
    name = other.open(
        scope="default",
        stage="fit",
        spec=plan,
        planned_steps=10,
        data_fingerprint=recorded["data_fingerprint"],
    )
    for _ in range(9):
        other.spend(name)
    shutil.copy(other.path, folder / "ledger.jsonl")


def _deleted(folder: Path) -> None:
    for file in folder.glob("ledger.jsonl*"):
        file.unlink()


def _emptied(folder: Path) -> None:
    (folder / "ledger.jsonl").write_text("")


def _cut(folder: Path) -> None:
    """Its last eight lines are gone."""
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-8]))


@pytest.mark.parametrize("attack", [_deleted, _emptied, _cut, _another_run])
def test_steps_that_the_ledger_does_not_show_are_not_gone_on_from(
    run: Path, tiny_model: str, corpus: str, attack: Callable[[Path], None]
) -> None:
    attack(run)
    with pytest.raises(PrivateTrainingError, match="has no release of it") as refused:
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
        assert ("whose private training was charged to another ledger" in caveats) == is_noted


def exchange_weights(path: Path) -> None:
    """Put other weights into a checkpoint, and leave all else."""
    checkpoint = torch.load(path, weights_only=True)
    state = {name: value * 1.01 for name, value in checkpoint["state_dict"].items()}
    torch.save({**checkpoint, "state_dict": state}, path)


def test_every_checkpoint_is_in_the_ledger_once(run: Path) -> None:
    files = {n: run / f"fit/checkpoints/{'last' if n == 10 else f'step={n}'}.ckpt" for n in (3, 6, 9, 10)}
    found = Ledger(run / "ledger.jsonl").releases("default/fit")
    assert found == [Released(n, sha256_of(file)) for n, file in files.items()]


def test_killed_between_the_ledger_and_the_name_there_is_no_checkpoint_and_the_next_one_is_whole(
    tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    """And before the ledger: what has its name on disk is always named by the ledger, too."""
    for after in (False, True):
        folder = tmp_path / str(after)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, Ledger, "release", 2, after)
            with pytest.raises(Killed):
                train(folder, tiny_model, corpus, [privacy(folder)])
        ledger, written = Ledger(folder / "ledger.jsonl"), sorted(folder.glob("*.ckpt"))
        assert [path.name for path in written] == ["step=3.ckpt"]
        assert all(ledger.unpaid_reason(sha256_of(path), "default") is None for path in written)
        train(folder, tiny_model, corpus, [privacy(folder)], written[0])
        assert Ledger(folder / "ledger.jsonl").unpaid_reason(sha256_of(folder / "step=6.ckpt"), "default") is None
        assert not list(folder.glob("*.partial"))


def test_other_weights_under_a_paid_checkpoint_are_not_gone_on_from(run: Path, tiny_model: str, corpus: str) -> None:
    exchange_weights(run / STEP_6)
    before = (run / "ledger.jsonl").read_bytes()
    with pytest.raises(PrivateTrainingError, match="has no release of it"):
        train(run, tiny_model, corpus, [privacy(run)], run / STEP_6)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_other_weights_under_a_paid_checkpoint_are_no_start_that_this_ledger_pays_for(
    run: Path, tiny_model: str, corpus: str
) -> None:
    exchange_weights(run / STEP_6)
    model = UtteranceLM(base_model=tiny_model, init_weights=str(run / STEP_6))
    fit(run, model, data_module(corpus), [privacy(run, scope="second")], max_epochs=1)
    caveats = " ".join(Ledger(run / "ledger.jsonl").summary()["scopes"]["second"]["caveats"])
    assert "whose private training was charged to another ledger" in caveats


def test_averaged_weights_are_bound_as_they_are_on_disk(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    train(tmp_path, tiny_model, corpus, [EMAWeightAveraging(decay=0.9), privacy(tmp_path)])
    checkpoint = read_checkpoint(tmp_path / "step=6.ckpt")
    names = checkpoint["state_dict"].keys()
    assert any(not torch.equal(checkpoint["state_dict"][n], checkpoint["current_model_state"][n]) for n in names)
    assert Ledger(tmp_path / "ledger.jsonl").unpaid_reason(sha256_of(tmp_path / "step=6.ckpt"), "default") is None

"""The next-word LSTM: its defaults, its public vocabulary, its rate, and its private step."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn, TrainerState
from private_training import data_module, fit, privacy, weights

import cli
from callbacks.row_independence import check_row_independence
from datamodules.batches.batch import LogicalBatch, MicroBatch
from datamodules.reading.example import Example
from doppel.errors import UserError
from doppel.privacy import check
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.private_step import PrivateTrainingError
from lightning_modules.training.step_policy import PlainStep
from studies.redaction.next_word_lstm import NextWordLSTM
from studies.redaction.word_vocabulary import SPECIAL, word_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
TEXT = ["cancel my lunch on Monday", "Will it rain in Rome, or snow?", "who is coming to the lunch", "yes please"]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("public") / "public.txt"
    path.write_text("\n".join(TEXT * 3))
    return str(path)


def small(public: str, **kwargs: Any) -> NextWordLSTM:
    torch.manual_seed(0)
    return NextWordLSTM(public, **({"hidden_size": 16, "max_length": 12} | kwargs))


def test_words_are_those_of_the_public_text_and_others_are_unknown(public: str) -> None:
    text_format = small(public, num_words=1000).text_format
    assert len(text_format.tokenizer) == len(SPECIAL) + 1 + len({"".join(w for w in word) for word in _words(TEXT)})
    ids = text_format.encode(Example("Lunch with Zebediah [MASK]?", None, "")).input_ids
    known = text_format.tokenizer.convert_ids_to_tokens(ids)
    assert known == ["<bos>", "lunch", "<unk>", "<unk>", "[MASK]", "?", "<eos>"]
    frequent = word_tokenizer(public, 2).get_vocab().keys() - {*SPECIAL.values(), "[MASK]"}
    assert "lunch" in frequent and len(frequent) == 2


def _words(texts: list[str]) -> set[str]:
    return {word for text in texts for word in text.lower().replace(",", " ,").replace("?", " ?").split()}


def test_weights_begin_uniform_and_defaults_are_the_papers(public: str) -> None:
    model = small(public, hidden_size=200)
    assert all(0.05 < p.abs().max() <= 0.1 for p in model.parameters() if p.numel() > 100)
    assert len(model.lstm.layers) == 2 and model.encoder.embedding_dim == NextWordLSTM(public).encoder.embedding_dim
    assert model.configure_optimizers().param_groups[0]["lr"] == 20 and model.max_grad_norm == 0.25
    assert model.anneal == 4 and check(model).is_trainable
    assert {layer.rule for layer in check(model).layers} == {"formula"}


def test_rows_are_independent_and_the_check_of_rows_is_passed(public: str) -> None:
    model = small(public)
    assert check_row_independence(model) is None
    alone, beside = model.eval().probe()
    assert torch.allclose(model.losses(alone)[0], model.losses(beside)[1])
    assert torch.allclose(
        model.losses(alone)[0].exp(), torch.tensor(len(model.text_format.tokenizer)) ** (7 / 16), rtol=0.1
    )


def test_a_loss_that_the_longest_row_divides_is_refused(public: str) -> None:
    class ByTheLongestRow(NextWordLSTM):
        def losses(self, batch: MicroBatch) -> torch.Tensor:
            return super().losses(batch) / batch.input_ids.shape[1]

    with pytest.raises(PrivateTrainingError, match="the loss of a made-up row in a batch of 16 changes"):
        check_row_independence(ByTheLongestRow(public, hidden_size=8, max_length=12))


def test_one_utterance_more_moves_the_clipped_sum_by_at_most_the_bound(public: str) -> None:
    model, rng = small(public, dropout=0.5), torch.Generator().manual_seed(1)
    _, batch = model.probe()
    for bound in (1e-4, 0.3):
        sums = []
        for rows in ([0], [1], [0, 1]):
            torch.set_rng_state(rng.get_state())
            clipper = PerSampleClipper(model.eval(), bound)
            model.zero_grad()
            part = copy.copy(batch)
            part.input_ids, part.labels, part.num_units = batch.input_ids[rows], batch.labels[rows], len(rows)
            with clipper.capture(len(rows)):
                model.losses(part).sum().backward()
            clipper.accumulate()
            clipper.close()
            sums.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        assert max(sums[0].norm(), sums[1].norm()) <= bound * (1 + 1e-6)
        assert torch.allclose(sums[2], sums[0] + sums[1], atol=1e-6)
        assert (sums[2] - sums[0]).norm() <= bound * (1 + 1e-5)


@pytest.mark.parametrize("is_private", [False, True])
def test_it_trains_and_resumes_under_the_shared_callback(
    tmp_path: Path, public: str, corpus: str, is_private: bool
) -> None:
    def callbacks() -> list[Callback]:
        return [privacy(tmp_path, max_grad_norm=1.5)] if is_private else []

    model = small(public)
    data = data_module(corpus, batch_size=20, val_path=public, val_is_public=True)
    start = weights(model).clone()
    trainer = fit(tmp_path, model, data, callbacks(), max_epochs=2)
    assert trainer.global_step == 6 and not torch.equal(start, weights(model))
    assert 0 < trainer.callback_metrics["val/loss"] < 50
    if is_private:
        assert (tmp_path / "ledger.jsonl").is_file() and "train/loss" not in trainer.callback_metrics
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = small(public)
    trainer = fit(tmp_path, again, data, callbacks(), max_epochs=2, ckpt_path=str(tmp_path / "last.ckpt"))
    assert torch.equal(weights(again), weights(model)) and again._best == model._best < math.inf
    other = small(public, num_words=3)
    with pytest.raises(UserError, match="vocabulary"):
        fit(tmp_path, other, data, callbacks(), max_epochs=2, ckpt_path=str(tmp_path / "last.ckpt"))


def test_the_gradient_of_a_plain_step_is_clipped(tmp_path: Path, public: str, corpus: str) -> None:
    """Rate 1: no step is longer than the bound."""
    model = small(public, optimizer=lambda params: torch.optim.SGD(params, lr=1.0), max_grad_norm=0.01)
    start = weights(model).clone()
    trainer = fit(tmp_path, model, data_module(corpus, batch_size=20), [], max_epochs=1)
    assert 0 < (weights(model) - start).norm() <= 0.01 * trainer.global_step * (1 + 1e-4)


class Trainer:
    """As much of one as the end of a validation asks for."""

    state, sanity_checking = TrainerState(fn=TrainerFn.FITTING), False


def losses_and_rates(model: NextWordLSTM, losses: list[float], is_public: bool, monkeypatch: Any) -> list[float]:
    optimizer, rates = model.configure_optimizers(), []
    monkeypatch.setattr(NextWordLSTM, "trainer", Trainer())
    monkeypatch.setattr(model, "optimizers", lambda use_pl_optimizer: optimizer)
    monkeypatch.setattr(model, "log", lambda *args, **kwargs: None)
    for loss in losses:
        model._is_public = is_public
        model._mean_loss.update(loss)
        model.on_validation_epoch_end()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_the_rate_is_divided_by_four_where_the_validation_does_not_improve(public: str, monkeypatch: Any) -> None:
    rates = losses_and_rates(small(public), [5.0, 4.0, 4.5, 4.0, 3.0], True, monkeypatch)
    assert rates == [20, 20, 5, 1.25, 1.25]


def test_a_loss_that_may_not_leave_the_process_moves_no_rate(public: str, monkeypatch: Any) -> None:
    """Even where it is logged as a private diagnostic."""

    class Closed(PlainStep):
        def metric_name(self, name: str, is_public: bool) -> str | None:
            return name if is_public else f"private/{name}"

    for is_public, rates in ((False, [20, 20, 20]), (True, [20, 5, 1.25])):
        model = small(public)
        model.step_policy = Closed()
        assert losses_and_rates(model, [4.0, 5.0, 6.0], is_public, monkeypatch) == rates


def test_a_private_validation_file_is_refused_before_a_step(tmp_path: Path, public: str, corpus: str) -> None:
    data = data_module(corpus, batch_size=20, val_path=public)
    for diagnostics in (False, True):
        with pytest.raises(UserError, match="rate follows the loss of data.val_path"):
            fit(tmp_path, small(public), data, [privacy(tmp_path, log_private_diagnostics=diagnostics)])
    assert '"step"' not in (tmp_path / "ledger.jsonl").read_text()


def test_a_vocabulary_of_private_text_is_refused(tmp_path: Path, corpus: str) -> None:
    """In whatever form it comes."""
    copy_of = tmp_path / "words.txt"
    copy_of.write_text("\n".join(line.split('"')[3].upper() for line in Path(corpus).read_text().splitlines()))
    for name in (corpus, str(copy_of)):
        with pytest.raises(UserError, match="model.public_text is .* is to be public"):
            fit(tmp_path, small(name), data_module(corpus), [privacy(tmp_path)])
    fit(tmp_path, small(corpus), data_module(corpus, is_public=True), [], max_epochs=1)


def test_an_empty_batch_has_a_loss_too(public: str) -> None:
    model = small(public)
    model._add(LogicalBatch([], 0, 0.0, is_public=True))
    assert math.isnan(model._mean_loss.take())
    with pytest.raises(UserError, match="anneal is 0.5"):
        small(public, anneal=0.5)


@pytest.mark.slow
def test_it_is_fitted_by_the_command_line(
    tmp_path: Path, public: str, corpus: str, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    words = [f"--config={ROOT}/studies/redaction/next_word.yaml", f"--model.init_args.public_text={public}"]
    words += ["--model.init_args.hidden_size=8", f"--data.init_args.train_path={corpus}"]
    words += ["--data.init_args.unit=utterance", f"--data.init_args.val_path={public}"]
    words += ["--data.init_args.val_is_public=true", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    words += ["--trainer.logger=false", f"--run_dir={tmp_path}/run/next_word"]
    assert cli.main(["fit", *words, "--privacy.target_epsilon=4", "--privacy.max_grad_norm=1.5"]) == 0
    assert (tmp_path / "run" / "next_word" / "checkpoints" / "last.ckpt").is_file()
    assert any("PRIVATE" in line and "ε" in line for line in said)
    assert any("cli.py validate" in line for line in said) and not any("predict" in line for line in said)

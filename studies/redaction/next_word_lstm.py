"""The LSTM that predicts the next word: what training text is worth, redacted or not, with privacy or without."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import Columns
from datamodules.text_format import TextFormat
from doppel.errors import UserError
from doppel.models.heads import checked_divisor
from doppel.privacy.clipping.head import HeadLoss
from lightning_modules.linear_lstm import LinearLSTM
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.step_policy import PlainStep
from lightning_modules.training.token_loss import MeanTokenLoss
from studies.redaction.word_vocabulary import word_tokenizer


def sgd(params: Any) -> Optimizer:
    """Stochastic gradient descent with rate 20 (Gusain and Leith, 2024, appendix 1)."""
    return torch.optim.SGD(params, lr=20.0)


class NextWordLSTM(LogicalBatchModule):
    """Word-level language model: embedding, LSTM, linear layer (Gusain and Leith, 2024, appendix 1).

    All weights begin uniform on (−0.1, 0.1). Where an epoch does not lower the loss of the validation file, the rate is
    divided by 4. ``val/loss`` and ``test/loss`` are the mean loss of a word, its end of text included, in nats: the
    log-perplexity. Each utterance is read from a state of zero, for the loss of a row must depend on that row alone:
    the paper's code (as that of PyTorch's example) runs on over all text.

    Formal guarantees:
        *Vocabulary.* It is that of ``public_text``. A file that says what private training data do is refused, as far
        as :func:`~datamodules.guards.overlap.overlapping` can tell.
        *Rate.* It follows the loss of the validation file, and so do the weights. In a private run that file must be
        public (``data.val_is_public``): then the rate is a function of public rows and of weights that are paid for. A
        loss that may not leave the process never moves the rate.

    Args:
        public_text: Public file whose words are the vocabulary: whatever ``DialogueDataModule`` reads.
        num_words: Words of the vocabulary, at most; any other one is ``<unk>``.
        columns: What the columns of ``public_text`` are called; null for the usual names.
        hidden_size: Size of the embedding and of each LSTM layer.
        num_layers: LSTM layers.
        dropout: Probability of dropout before, between and after the LSTM's layers.
        max_length: Longest example in words; longer ones contribute zero, or are cut (``data.truncate``).
        loss_divisor: Divides the sum of a row's word losses, see :class:`~lightning_modules.causal_lm.CausalLM`.
        max_grad_norm: Norm that the gradient of a step is clipped to; null for never. A private step clips each unit,
            to the norm that ``privacy`` names, and nothing after it.
        optimizer: Optimiser; SGD with rate 20 by default.
        anneal: What the rate is divided by where the validation loss does not improve.
    """

    def __init__(
        self,
        public_text: str,
        num_words: int = 10_000,
        columns: Columns | None = None,
        hidden_size: int = 200,
        num_layers: int = 2,
        dropout: float = 0.2,
        max_length: int = 64,
        loss_divisor: float | None = 16.0,
        max_grad_norm: float | None = 0.25,
        optimizer: OptimizerCallable = sgd,
        anneal: float = 4.0,
    ) -> None:
        super().__init__()
        if not anneal >= 1:
            raise UserError(f"anneal is {anneal}: the rate is divided by it, so give 1 (never) or more")
        self.public_text, self.columns = public_text, columns
        self.text_format = TextFormat(word_tokenizer(public_text, num_words, columns), None, "utterance", max_length)
        size = len(self.text_format.tokenizer)
        self.encoder = nn.Embedding(size, hidden_size)
        self.lstm = LinearLSTM(hidden_size, hidden_size, num_layers, dropout)
        self.decoder = nn.Linear(hidden_size, size)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)
        self.loss_divisor = checked_divisor(loss_divisor)
        self.head_loss = HeadLoss(self.decoder, divisor=loss_divisor)
        self.max_grad_norm = max_grad_norm
        self.optimizer, self.anneal = optimizer, anneal
        self._best = math.inf  # loss of the validation file
        self._mean_loss = MeanTokenLoss()
        self._is_public = False

    def losses(self, batch: MicroBatch) -> Tensor:
        """Negative log-likelihood of each row's words, in nats, divided by ``loss_divisor``, [rows].

        Padding is on the right, where neither the LSTM nor the loss looks.
        """
        ids_BT, labels_BT = batch.input_ids[:, :-1], batch.labels[:, 1:]
        states_BTH = self.lstm(self.dropout(self.encoder(ids_BT)))
        return self.head_loss(self.dropout(states_BTH), labels_BT)

    def probe(self) -> tuple[MicroBatch, ...]:
        """Random words: a row of 8 alone, after one of at most 16 and one of ``max_length``."""
        ids = torch.randint(
            len(self.text_format.tokenizer), (2, max(self.text_format.max_length, 8)), generator=_seeded()
        )
        labels = ids.clone()
        ids[1, 8:], labels[1, 8:] = self.text_format.pad_id, IGNORE_INDEX
        ids, labels = ids.to(self.device), labels.to(self.device)
        beside = [
            MicroBatch(ids[:, :n], labels[:, :n], num_units=2) for n in sorted({min(16, ids.shape[1]), ids.shape[1]})
        ]
        return MicroBatch(ids[1:, :8], labels[1:, :8], num_units=1), *beside

    def setup(self, stage: str) -> None:
        """Refuse a vocabulary of private text.

        Raises:
            UserError: ``public_text`` says what the training file does, and that is not public.
        """
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, DialogueDataModule) and stage == "fit" and not data.is_public:
            private = data.rows.path, data.rows.columns
            refuse_private([("model.public_text", self.public_text, self.columns)], [private])

    def on_fit_start(self) -> None:
        """Refuse a rate that would follow private rows.

        Raises:
            UserError: The run is private, and the validation file is not declared public.
        """
        super().on_fit_start()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if getattr(data, "val_path", None) is not None and not self._may_follow(getattr(data, "val_is_public", False)):
            raise UserError(
                "the learning rate follows the loss of data.val_path, which is not declared public, so that no ε would "
                "cover the weights: set data.val_is_public=true for a public file, or leave val_path out"
            )

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip the gradient of a step that is not private, which a gradient scaler has unscaled by now."""
        if self.max_grad_norm is not None and isinstance(self.step_policy, PlainStep):
            nn.utils.clip_grad_norm_(self.parameters(), self.max_grad_norm)

    def validation_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        """Mean loss of a word."""
        self._add(batch)

    def on_validation_epoch_end(self) -> None:
        """Log it; divide the rate where it is no lower than the lowest before."""
        loss = self._mean_loss.take()
        self.log_metric("val/loss", loss, self._is_public)
        is_fit = self.trainer.state.fn == TrainerFn.FITTING and not self.trainer.sanity_checking
        if not is_fit or not self._may_follow(self._is_public):
            return
        if loss < self._best:
            self._best = float(loss)
            return
        for group in self.optimizers(use_pl_optimizer=False).param_groups:  # type: ignore[union-attr]
            group["lr"] /= self.anneal

    def test_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        """Mean loss of a word."""
        self._add(batch)

    def on_test_epoch_end(self) -> None:
        """Log it."""
        self.log_metric("test/loss", self._mean_loss.take(), self._is_public)

    def configure_optimizers(self) -> Optimizer:
        """The optimiser as injected; its rate is ours."""
        return self.optimizer(self.parameters())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the loss that the rate is decided by, and which words the weights know."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["best_val_loss"] = self._best
        checkpoint["text_format"] = self.text_format.compatibility()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights of other words.

        Raises:
            UserError: The vocabulary is another one.
        """
        super().on_load_checkpoint(checkpoint)
        if "best_val_loss" not in checkpoint or self.text_format.other_format(checkpoint["text_format"]) is not None:
            raise UserError(
                "the checkpoint is none of a NextWordLSTM with this vocabulary: give the model the settings of its "
                "config.yaml"
            )
        self._best = checkpoint["best_val_loss"]

    def _may_follow(self, is_public: bool) -> bool:
        """Whether a validation loss may move the rate: then it may leave the process under its own name."""
        return self.step_policy.metric_name("val/loss", is_public) == "val/loss"

    def _add(self, batch: LogicalBatch) -> None:
        self._is_public = batch.is_public
        self._mean_loss.add(batch, self.losses, self.loss_divisor)


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)

"""Causal language models trained by logical batches: p(utterance), p(parse tree), p(utterance | prompt)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim.optimizer import Optimizer

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch, PromptBatch
from datamodules.reading.example import Field
from datamodules.reading.files import expand_path
from datamodules.text_format import MAX_LENGTH, Linearisation, TextFormat
from doppel.decoding.sampling import SamplingArguments
from doppel.decoding.tree_constraint import tree_constraint
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED
from doppel.models.activations import attention_for, checkpoint_activations, leave_padding_alone, whole_rows
from doppel.models.adapters import LoraArguments, check_same_adapters
from doppel.models.footprint import Micro, footprint, half_of
from doppel.models.frozen_base import Dtype, FrozenBase
from doppel.models.heads import checked_divisor, head_loss
from doppel.models.load import check_ids, load_model, load_tokenizer, longest_example
from doppel.models.memory import shortage
from doppel.models.pairing import check_reads
from doppel.models.quantized import Quantization, check_bitsandbytes
from doppel.privacy.card import origins_of
from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.optimizer import DPAdam
from doppel.privacy.private_step import PrivateStep
from lightning_modules.sampling import Sample, draw_samples
from lightning_modules.training.default_optimizer import constant, dp_adam
from lightning_modules.training.graphs import CudaGraphs
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.step_policy import keep_adapters_wide
from lightning_modules.training.token_loss import MeanTokenLoss, num_labels_of
from lightning_modules.training.warm_start import WarmStart, adapt

#: Tokens of the rows that the check of rows mixes, and of the longest one beside which it compares gradients.
_SHORT, _LONG, _LONGER = 8, 16, 64


class CausalLM(LogicalBatchModule):
    """Language model p(target | source) over a Hugging Face causal LM.

    *What the loss estimates.* A row's loss is the sum of its token losses divided by the public constant
    ``loss_divisor``. The mean over rows is then, up to that constant, the cross-entropy of whole texts, which p(data)
    minimises: texts are sampled as often as they occur. With ``loss_divisor: null`` every row's sum is divided by its
    own number L of tokens, as in the code of Mireshghallah et al. (2023). That loss weighs a text by 1/L, and its
    minimiser has p(next | prefix) in proportion to Σ 1/L over the rows with this prefix: short texts are sampled too
    often, with or without privacy. Gradients grow with L under a constant divisor, so the clipping norm decides how
    much long rows are cut (``python cli.py norms``). Either way a row's loss depends on that row and public numbers
    alone.

    Args:
        base_model: Folder or hub name of any Hugging Face causal LM, such as ``models/base`` or ``gpt2``.
        source: Field of the example used as the prompt; null for an unconditional model.
        target: Field of the example that the model learns to write.
        init: ``pretrained`` loads the weights of ``base_model``; ``random`` uses its architecture only.
        init_weights: Run folder or checkpoint of a Doppel model with the same ``base_model`` to start from, such as one
            trained on public requests. What these weights were trained on must be public or charged in a ledger: this
            run's ε does not cover it. Weights of ``ckpt_path`` win over them. ``$VARIABLE`` is filled in.
        max_length: Longest example in tokens; longer ones contribute zero (they are never dropped). A private training
            tries a row of this length before its first step. Null: all positions of the model, as also where it has
            fewer.
        loss_divisor: Public constant that divides the sum of a row's token losses; null: the row's own number of
            tokens, as in the paper's code.
        task_prefix: Whether each prompt starts with the type of text, see :class:`~datamodules.text_format.TextFormat`.
            The shipped base model was trained so; the paper has no such prefix.
        linearisation: How parse trees are written: ``raw``, or ``spaced`` with a space inside each quote, so that names
            have the same tokens as in the request. A model keeps what it was trained with.
        slots: Table of placeholders: names quoted by a tree become ``person1``, ``event1``, … in tree and request
            before training, and public names replace them in samples (:class:`~datamodules.text_format.TextFormat`).
            ``shipped`` suits the embedded grammar, SMCalFlow, TreeDST and SGD; or a YAML file of your own
            (:class:`~doppel.grammar.slot_table.SlotTable`); null trains on names, as the paper does. Models without
            trees have no placeholders.
        dropout: Overrides the dropout probabilities of the base model; null keeps them.
        lora: Train low-rank adapters (LoRA) only; null trains every weight.
        dtype: How the weights below LoRA are held. ``auto``: in what the training computes in, bfloat16 where its
            precision is bfloat16 or a GPU has it; in float32 on a CPU, as their folder says. LoRA weights, optimiser
            and sums are float32 in any case, and so is a model whose weights are all trained.
        quantization: ``nf4`` packs the linear layers below LoRA into four bits a weight (Dettmers et al., 2023), by
            bitsandbytes (extra ``quantized``), on a CPU as on a GPU: a third of the memory; what it costs in
            samples is not measured. Null leaves them as ``dtype`` says. A base whose folder holds four-bit weights
            stays as it is.
        activation_checkpointing: Recompute activations of the model's blocks in the backward pass: less memory, about a
            third more time. A private training keeps more of the layers that it trains: there a smaller
            ``max_tokens_per_micro_batch`` saves memory without that time.
        cuda_graphs: ``auto``: on a GPU each shape of a micro-batch is recorded once and then computed without the host,
            which small models wait for; what cannot be recorded goes on as ever, and one line says so. ``off``: never.
        optimizer: Optimiser; by default DPAdam, which without privacy is AdamW, at 2e-3 (8e-3 for LoRA with privacy)
            without weight decay (:mod:`~lightning_modules.training.default_optimizer`).
        lr_scheduler: Scheduler, stepped once per logical batch; constant by default.
        sampling: How ``predict`` samples text.
    """

    def __init__(
        self,
        base_model: str = "models/base",
        source: Field | None = None,
        target: Field = "utterance",
        init: Literal["pretrained", "random"] = "pretrained",
        init_weights: str | None = None,
        max_length: int | None = MAX_LENGTH,
        loss_divisor: float | None = 16.0,
        task_prefix: bool = True,
        linearisation: Linearisation = "spaced",
        slots: str | None = SHIPPED,
        dropout: float | None = 0.0,
        lora: LoraArguments | None = None,
        dtype: Dtype = "auto",
        quantization: Quantization | None = None,
        activation_checkpointing: bool = False,
        cuda_graphs: CudaGraphs = "auto",
        optimizer: OptimizerCallable = dp_adam,
        lr_scheduler: LRSchedulerCallable = constant,
        sampling: SamplingArguments = SamplingArguments(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.check(
            max_length=max_length,
            loss_divisor=loss_divisor,
            dropout=dropout,
            lora=lora,
            dtype=dtype,
            quantization=quantization,
        )
        # Loaded: the model, the form in which it reads text, the weights that its training starts from.
        #: The weights below the adapters, which no checkpoint holds; None where every weight is trained.
        self.base = None if lora is None else FrozenBase(base_model, dtype, quantization)
        self.trains_lora_alone = lora is not None
        self.strict_loading = lora is None
        load = partial(load_model, base_model) if self.base is None else self.base.load
        self.model = load(init=init, dropout=dropout).train()
        length = longest_example(self.model, max_length)
        tokenizer = load_tokenizer(base_model)
        check_ids(tokenizer, self.model, base_model)
        self.text_format = TextFormat(tokenizer, source, target, length, linearisation, task_prefix, slots)
        start = None if init_weights is None else WarmStart.read(expand_path(init_weights), self.text_format)
        #: Which weights the training started from; kept in the logger's configuration and in checkpoints.
        self.warm_start = None if start is None else start.record
        self._pretrained = None if init == "random" else base_model
        self.origins = [] if init == "random" else origins_of(Path(base_model))
        self.origins += [] if start is None else [start.record, *start.origins]
        # Adapted: low-rank adapters, and these weights.
        self.lora = lora
        adapt(self.model, lora, start, self.base)
        # The loss of hidden states; None for a model that does more with its logits than apply its head.
        self.loss_divisor = loss_divisor
        self.head_loss = head_loss(self.model, loss_divisor)
        leave_padding_alone(self.model)
        if activation_checkpointing:
            checkpoint_activations(self.model, length)
        self.cuda_graphs = cuda_graphs
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        # Sampled from; a grammar that does not suit is refused before anything is spent.
        self.sampling = sampling
        if target == "parse":
            tree_constraint(self.text_format, sampling.grammar)
        self._mean_loss = MeanTokenLoss()
        self._is_public = False

    @staticmethod
    def check(**arguments: Any) -> None:
        """Refuse arguments out of their range, before weights are loaded.

        Raises:
            UserError: One is.
        """
        length, dropout, lora, dtype = (arguments.get(name) for name in ("max_length", "dropout", "lora", "dtype"))
        if length is not None and length < 1:
            raise UserError(f"max_length is {length}: give at least 1, or null for all positions of the model")
        if dropout is not None and not 0 <= dropout <= 1:
            raise UserError(f"dropout is {dropout}: give a probability, or null for those of the base model")
        checked_divisor(arguments.get("loss_divisor"))
        if lora is not None:
            lora.check()
        elif dtype not in (None, "auto", "float32"):
            raise UserError(f"dtype {dtype} is for weights that are not trained: leave it out, or set the model's lora")
        if arguments.get("quantization") is not None:
            if lora is None:
                raise UserError(
                    "quantization packs weights that are not trained: leave it out, or set the model's lora"
                )
            check_bitsandbytes()

    def trunk(self, input_ids: Tensor) -> Tensor:
        """Return hidden states [rows, T, D], which the head is applied to."""
        hidden: Tensor = self.model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden

    def losses(self, batch: MicroBatch) -> Tensor:
        """Return the negative log-likelihood of each row's labelled tokens, in nats, divided by ``loss_divisor``.

        Padding is on the right, where causal attention never looks, so no mask is needed. Nothing comes after the last
        column, so the model does not see it: a twelfth of the work for an utterance.

        Returns:
            Losses of shape [rows]; 0 for a row without labels.
        """
        ids_BT, labels_BT = batch.input_ids[:, :-1], batch.labels[:, 1:]
        if not ids_BT.shape[1]:  # a row of one token has no loss
            ids_BT, labels_BT = batch.input_ids, F.pad(labels_BT, (0, 1), value=IGNORE_INDEX)
        with attention_for(self.device, self.text_format.max_length), whole_rows():
            if self.head_loss is None:
                logits_BTV = self.model(input_ids=ids_BT, use_cache=False).logits
            else:
                return self.head_loss(self.trunk(ids_BT), labels_BT, batch.num_labels)
        nll_BT = F.cross_entropy(
            logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
        ).view_as(labels_BT)
        return nll_BT.sum(1) / (self.loss_divisor or num_labels_of(batch).clamp(min=1))

    def probe(self) -> tuple[MicroBatch, ...]:
        """Draw random tokens: a row of at most 8 alone, after one of 16, one of 64 and one of ``max_length``."""
        vocabulary, length = self.model.get_input_embeddings().num_embeddings, min(self.text_format.max_length, 8192)
        ids = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(0))
        labels = ids.clone()
        ids[1, _SHORT:], labels[1, _SHORT:] = self.text_format.pad_id, IGNORE_INDEX
        ids, labels = ids.to(self.device), labels.to(self.device)
        lengths = [*(n for n in (_LONG, _LONGER) if n < length), length]
        beside = [MicroBatch(ids[:, :n], labels[:, :n], num_units=2) for n in lengths]
        return MicroBatch(ids[1:, :_SHORT], labels[1:, :_SHORT], num_units=1), *beside

    def setup(self, stage: str) -> None:
        """Hold the frozen base as the trainer computes; tell loggers where a warm start came from."""
        if self.base is not None:
            self.base.settle(self.trainer.strategy.root_device, str(self.trainer.precision))
            keep_adapters_wide(self.trainer)
        if stage == "fit" and self.warm_start is not None:
            for logger in self.trainer.loggers:
                logger.log_hyperparams({"warm_start": self.warm_start})

    def on_fit_start(self) -> None:
        """Hash the frozen base, whose digest each checkpoint has; say if there is too little memory for a step.

        Raises:
            ModelError: The base cannot read what its tokenizer writes.
        """
        super().on_fit_start()
        if self._pretrained is not None and self.trainer.ckpt_path is None:
            with self.trainer.precision_plugin.forward_context():
                check_reads(self.text_format.tokenizer, self.model, self._pretrained)
        if self.base is not None:
            _ = self.base.digest
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        max_tokens = getattr(data, "max_tokens_per_micro_batch", None)
        if max_tokens is None:
            return
        is_private = isinstance(self.step_policy, PrivateStep)
        micro = Micro(
            max_tokens,
            getattr(data, "max_units_per_micro_batch", None),
            half_of(str(self.trainer.precision)),
            self.device.type,
            self.text_format.max_length,
            is_private,
            moments=1 if is_private and isinstance(self.trainer.optimizers[0], DPAdam) else 2,
            bands=self.step_policy.spec.bands if isinstance(self.step_policy, PrivateStep) else 1,
            num_ranks=self.trainer.world_size,
        )
        found = footprint(self.model, micro, self.head_loss)
        words = None if found is None else shortage(found, self.device)
        if words is not None:
            rank_zero_warn(words)

    def validation_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        """Log the mean loss of a token."""
        self._add_losses(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the mean loss."""
        self._log_loss("val/loss")

    def test_step(self, batch: LogicalBatch, batch_idx: int) -> None:
        """Log the mean loss of a token."""
        self._add_losses(batch)

    def on_test_epoch_end(self) -> None:
        """Log the mean loss."""
        self._log_loss("test/loss")

    def predict_step(self, batch: PromptBatch, batch_idx: int) -> list[Sample]:
        """Sample one target for each prompt."""
        return draw_samples(self.model, self.text_format, batch, self.sampling)

    def configure_optimizers(self) -> Any:
        """Build optimiser and scheduler as injected."""
        trained = [p for p in self.parameters() if p.requires_grad]
        if self.optimizer is dp_adam:
            optimizer: Optimizer = dp_adam(trained, self.is_private_training, self.lora is not None)
        else:
            optimizer = self.optimizer(trained)
        return {"optimizer": optimizer, "lr_scheduler": self.lr_scheduler(optimizer)}

    def left_out(self) -> frozenset[str]:
        """Return the entries of the frozen base, where its folder holds them."""
        return frozenset() if self.base is None or not self.base.is_in_folder else self.base.names

    def fingerprints(self) -> Mapping[str, str]:
        """Return those of the frozen base."""
        return {} if self.base is None else self.base.fingerprints

    def weights_digest(self) -> str:
        """Return the SHA-256 of all weights: of the trained ones, and of the digest of the base."""
        if self.base is None:
            return super().weights_digest()
        own = {name: value for name, value in self.state_dict().items() if name not in self.base.names}
        return weights_fingerprint({**own, "base": self.base.digest})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what is trained, and what it does not tell: which base and adapters, how text is written, where a warm
        start came from. The frozen base is left out, see :class:`~doppel.models.frozen_base.FrozenBase`.
        """
        super().on_save_checkpoint(checkpoint)
        checkpoint["lora"] = None if self.lora is None else asdict(self.lora)
        checkpoint["base"] = None if self.base is None else self.base.record()
        for name in self.left_out():
            checkpoint.get("state_dict", {}).pop(name, None)
        checkpoint["text_format"] = self.text_format.compatibility()
        checkpoint["warm_start"] = self.warm_start

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights of other adapters than this model's, of another base, or of another text format.

        Raises:
            UserError: They do not fit.
        """
        super().on_load_checkpoint(checkpoint)
        if "text_format" not in checkpoint:
            raise UserError("the checkpoint is no language model's of ours: give the last.ckpt of its `fit`")
        name = self.text_format.other_format(checkpoint["text_format"])
        if name is not None:
            raise UserError(
                f"the checkpoint was trained with another {name}: give the model the settings of its config.yaml"
            )
        check_same_adapters(checkpoint["lora"], self.lora)
        if self.base is not None:
            self.base.take(checkpoint, getattr(self._trainer, "ckpt_path", None) or "the checkpoint")
            self._refuse_other_names(checkpoint.get("state_dict", {}).keys())
        self.warm_start = checkpoint["warm_start"]

    def _refuse_other_names(self, names: Collection[str]) -> None:
        """Refuse a checkpoint that lacks a trained weight; Lightning looks at none, for it lacks the frozen ones."""
        other = sorted((self.state_dict().keys() - self.left_out()) ^ set(names))
        if names and other:
            raise UserError(
                f"{len(other)} weights are in the checkpoint or in the model alone, such as {other[0]}: give the model "
                "the settings of its config.yaml"
            )

    def _add_losses(self, batch: LogicalBatch) -> None:
        self._is_public = batch.is_public
        self._mean_loss.add(batch, self.losses, self.loss_divisor)

    def _log_loss(self, name: str) -> None:
        self.log_metric(name, self._mean_loss.take(), self._is_public)


class UtteranceLM(CausalLM):
    """Model p(x) of utterances: the one-stage baseline (Mireshghallah et al., 2023, Algorithm 1)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source=None, target="utterance", **kwargs)


class ParseTreeLM(CausalLM):
    """Model p(y) of Lispress parse trees, the first stage of Mireshghallah et al., 2023, Algorithm 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source=None, target="parse", **kwargs)


class Parse2Utterance(CausalLM):
    """Model p(x|y) of utterances given a prompt, the second stage of Mireshghallah et al., 2023, Algorithm 2.

    Args:
        source: ``parse`` prompts with the parse tree; ``label`` with the label, for which there are no trees.
    """

    def __init__(self, source: Literal["parse", "label"] = "parse", **kwargs: Any) -> None:
        super().__init__(source=source, target="utterance", **kwargs)

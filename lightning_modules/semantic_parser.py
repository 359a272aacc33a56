"""The semantic parser: utterances to graph actions to Lispress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch.nn import Parameter
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import Optimizer
from torchmetrics import MeanMetric, MetricCollection

from datamodules.batches.batch import ExampleBatch, ParserBatch, PromptBatch
from datamodules.reading.files import expand_path
from doppel.errors import UserError
from doppel.metrics.parser_metrics import parser_metric_collection
from doppel.models.activations import attention_for
from doppel.parsing.vocabulary import ActionVocabulary
from doppel.privacy.checkpoint import read_checkpoint
from doppel.text.words import pieces_of
from lightning_modules.parsing.action_decoder import DecoderArguments
from lightning_modules.parsing.greedy import greedy_parse
from lightning_modules.parsing.parser_network import ParserLosses, ParserNetwork
from lightning_modules.parsing.source_encoder import EncoderArguments
from lightning_modules.sampling import Sample
from lightning_modules.training.logical_batch_module import LogicalBatchModule


def adamw(params: Any) -> Optimizer:
    """Build AdamW with betas (0.9, 0.98), rate 1e-3 and weight decay 0.01."""
    return torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


class Fields(NamedTuple):
    """Which fields of a line the parser reads and writes, as writers of predictions ask a model's text_format."""

    source: str = "utterance"
    target: str = "parse"


class SemanticParser(LogicalBatchModule):
    """Transformer encoder–decoder over graph actions with pointers (Zhou et al., 2022).

    Every output is a well-formed graph and Lispress: a state machine masks what would not be. The vocabulary of actions
    is read off the training trees, so this training makes no privacy claim, and a private run refuses it. Trained on
    public turns, or on what a private model wrote, it costs no budget.

    Args:
        encoder: Where the vectors of the source come from.
        decoder: Sizes.
        max_actions: Actions after which a parse is led to its end; the published trees need less than 200.
        max_rows: Most utterances that are parsed together.
        label_smoothing: Probability spread evenly over all actions.
        optimizer: Optimiser; AdamW by default.
        encoder_lr: Rate of a trainable pretrained encoder.
        schedule: How rates fall after the warm-up: ``inverse_sqrt`` as in the paper, or ``linear`` to zero at the end.
        warmup_steps: Steps of the linear warm-up.
        max_grad_norm: The gradient is clipped to this norm; null for never.
        init_weights: Checkpoint of a parser that this one starts from, such as one that has learnt a synthetic pool
            (Oren et al., 2021); it must have the same sizes. Actions that it does not know are added. It is as private
            as its data were, and so is what starts from it. Null for a fresh decoder.
        functions: Functions whose turns ``test`` also reports on, such as ``[WeatherQueryApi, EventOnDate*]``.
    """

    not_private_because = "its vocabulary of actions is read off the training trees"

    def __init__(
        self,
        encoder: EncoderArguments = EncoderArguments(),  # noqa: B008 (frozen)
        decoder: DecoderArguments = DecoderArguments(),  # noqa: B008 (frozen)
        max_actions: int = 256,
        max_rows: int = 256,
        label_smoothing: float = 0.01,
        optimizer: OptimizerCallable = adamw,
        encoder_lr: float = 1e-4,
        schedule: Literal["inverse_sqrt", "linear"] = "linear",
        warmup_steps: int = 200,
        max_grad_norm: float | None = 1.0,
        init_weights: str | None = None,
        functions: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.encoder_arguments = encoder
        self.decoder_arguments = decoder
        self.max_actions = max_actions
        self.max_rows = max_rows
        self.label_smoothing = label_smoothing
        self.optimizer = optimizer
        self.encoder_lr = encoder_lr
        self.schedule = schedule
        self.warmup_steps = warmup_steps
        self.max_grad_norm = max_grad_norm
        self.init_weights = init_weights
        self.text_format = Fields()
        #: The actions; None until training data or a checkpoint tells.
        self.vocabulary: ActionVocabulary | None = None
        self.network: ParserNetwork | None = None
        # nan_strategy: NaN stays NaN ("disable" of torchmetrics 1.9 forgets the weights)
        self._mean_loss = MeanMetric(nan_strategy=math.nan)  # of an action of the validation file, over all ranks
        self.val_metrics = parser_metric_collection(prefix="val/")
        self.test_metrics = parser_metric_collection(functions or (), prefix="test/")

    def build(self, vocabulary: ActionVocabulary, load_weights: bool = True) -> None:
        """Make the network of a vocabulary, with the pretrained encoder's weights or for those of a checkpoint."""
        self.vocabulary = vocabulary
        self.network = ParserNetwork(vocabulary, self.encoder_arguments, self.decoder_arguments, load_weights)

    def setup(self, stage: str) -> None:
        """Make the network of the training data's vocabulary.

        Raises:
            UserError: The data has none.
        """
        if stage != "fit":
            return
        vocabulary = getattr(self.trainer.datamodule, "vocabulary", None)  # type: ignore[attr-defined]
        if not isinstance(vocabulary, ActionVocabulary):
            raise UserError(
                "SemanticParser trains on actions: set data.class_path to "
                "datamodules.parser_data_module.ParserDataModule"
            )
        if self.vocabulary is None:
            self.build(vocabulary)
            start = self.start()
            if start is not None:
                assert self.network is not None and start.network is not None and start.vocabulary is not None
                self.network.start_from(start.network, vocabulary.numbers_in(start.vocabulary))

    def start(self) -> SemanticParser | None:
        """Load the parser that ``init_weights`` names; see :func:`load_parser`."""
        return None if self.init_weights is None else load_parser(expand_path(self.init_weights), "cpu")

    def annotate(self, utterances: Sequence[str]) -> list[str]:
        """Parse utterances, those of similar length together: one well-formed tree for each, in the order given.

        Raises:
            UserError: The parser was neither trained nor loaded.
        """
        return [tree for tree, _ in self.annotate_with_scores(utterances)]

    def annotate_with_scores(self, utterances: Sequence[str]) -> list[tuple[str, float]]:
        """Annotate as :meth:`annotate`, with the negative log-likelihood of the parser's output, in nats an action."""
        network, vocabulary = self._ready()
        was_training = network.training
        network.eval()
        order = sorted(range(len(utterances)), key=lambda i: len(utterances[i]))
        trees = [("", 0.0)] * len(utterances)
        for start in range(0, len(order), self.max_rows):
            part = order[start : start + self.max_rows]
            sources = [pieces_of(utterances[i]) for i in part]
            machines, scores = greedy_parse(network, vocabulary, sources, self.max_actions)
            for index, source, machine, score in zip(part, sources, machines, scores, strict=True):
                trees[index] = machine.lispress(source), score
        network.train(was_training)
        return trees

    def training_step(self, batch: ParserBatch, batch_idx: int) -> None:  # type: ignore[override]
        """Take one optimiser step; a rank without a turn steps too."""
        network, _ = self._ready()
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        reducer = self.begin_step(p for group in optimizer.param_groups for p in group["params"])
        if batch.sources:
            losses = self._losses(network, batch, self.label_smoothing)
            with reducer.watching():
                self.manual_backward(losses.total)
            per_action = 1 / max(losses.num_actions, 1)
            self.log_metric("train/loss", losses.total.detach() * per_action, False, prog_bar=True)
            self.log_metric("train/pointer_loss", losses.pointers.detach() * per_action, False)
            self.log_metric("train/copy_loss", losses.copies.detach() * per_action, False)
        self.end_step(reducer, batch.num_actions)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Clip the gradient of the whole batch, which a gradient scaler has unscaled by now."""
        if self.max_grad_norm is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)

    def validation_step(self, batch: ExampleBatch, batch_idx: int) -> None:
        """Log the loss of the oracle's actions; parse the utterances."""
        network, _ = self._ready()
        if batch.actions is not None:
            losses = self._losses(network, batch.actions, 0.0)
            self._mean_loss.update(losses.total / max(losses.num_actions, 1), weight=losses.num_actions)
        self._mean_loss.update(0.0, weight=0.0)  # a rank whose batch is empty takes part too
        self.val_metrics.update(self.annotate(batch.utterances), batch.trees)

    def on_validation_epoch_end(self) -> None:
        """Log the loss of an action, exact match and the like."""
        self.log_metric("val/loss", self._mean_loss.compute(), False)
        self._mean_loss.reset()
        self._log_metrics(self.val_metrics)

    def test_step(self, batch: ExampleBatch, batch_idx: int) -> None:
        """Parse the utterances."""
        self.test_metrics.update(self.annotate(batch.utterances), batch.trees)

    def on_test_epoch_end(self) -> None:
        """Log exact match and the like."""
        self._log_metrics(self.test_metrics)

    def predict_step(self, batch: PromptBatch, batch_idx: int) -> list[Sample]:
        """Annotate each utterance with one tree."""
        utterances = [prompt or "" for prompt in batch.prompts]
        trees = self.annotate(utterances)
        rows = zip(batch.indices, trees, utterances, batch.fields or [{} for _ in trees], strict=True)
        return [Sample(index, tree, utterance, True, fields) for index, tree, utterance, fields in rows]

    def configure_optimizers(self) -> Any:
        """Build the injected optimiser, with a rate of its own for a pretrained encoder, and a scheduler by steps."""
        network, _ = self._ready()
        has_own_rate = self.encoder_arguments.name != "small"
        own: list[Parameter] = []
        pretrained: list[Parameter] = []
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                (pretrained if has_own_rate and name.startswith("encoder.") else own).append(parameter)
        groups: list[dict[str, Any]] = [{"params": own}, {"params": pretrained, "lr": self.encoder_lr}]
        optimizer = self.optimizer([group for group in groups if group["params"]])  # type: ignore[arg-type]
        total = int(self.trainer.estimated_stepping_batches) if self.schedule == "linear" else 0
        warmup = max(self.warmup_steps, 1)

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            if self.schedule == "inverse_sqrt":
                return float((warmup / (step + 1)) ** 0.5)
            return max(total - step, 0) / max(total - warmup, 1)

        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, factor)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the vocabulary and the sizes; leave out the weights of a frozen encoder, which are not this model's."""
        network, vocabulary = self._ready()
        checkpoint["vocabulary"] = vocabulary.to_dict()
        checkpoint["parser"] = {
            "encoder": asdict(self.encoder_arguments),
            "decoder": asdict(self.decoder_arguments),
            "max_actions": self.max_actions,
        }
        for name in self._frozen_names(network):
            checkpoint["state_dict"].pop(name, None)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the network that the checkpoint was trained as.

        Raises:
            UserError: It is no parser's, or it has another vocabulary or other sizes than this run.
        """
        if "vocabulary" not in checkpoint:
            raise UserError("the checkpoint is no semantic parser's: give RUN/parser/checkpoints/last.ckpt")
        vocabulary = ActionVocabulary.from_dict(checkpoint["vocabulary"])
        saved = checkpoint["parser"]
        encoder, decoder = EncoderArguments(**saved["encoder"]), DecoderArguments(**saved["decoder"])
        if self.vocabulary is not None and self.vocabulary != vocabulary:
            raise UserError(
                "the checkpoint has another vocabulary than the training data: resume with the data it was started with"
            )
        if self.network is None or (encoder, decoder) != (self.encoder_arguments, self.decoder_arguments):
            self.encoder_arguments, self.decoder_arguments = encoder, decoder
            self.build(vocabulary, load_weights=False)
        assert self.network is not None
        own = self.state_dict()
        for name in self._frozen_names(self.network):
            checkpoint["state_dict"].setdefault(name, own[name])

    def _frozen_names(self, network: ParserNetwork) -> list[str]:
        if not network.encoder.is_frozen:
            return []
        return [name for name in self.state_dict() if name.startswith("network.encoder.")]

    def _losses(self, network: ParserNetwork, batch: ParserBatch, label_smoothing: float) -> ParserLosses:
        with attention_for(network.device, self.max_actions):
            return network.losses(batch.sources, batch.ids, batch.pointers, batch.copies, label_smoothing)

    def _ready(self) -> tuple[ParserNetwork, ActionVocabulary]:
        if self.network is None or self.vocabulary is None:
            raise UserError("the parser has no weights yet: fit it, or give its checkpoint with --ckpt_path")
        return self.network, self.vocabulary

    def _log_metrics(self, metrics: MetricCollection) -> None:
        for name, value in metrics.compute().items():
            if value.isfinite():
                self.log_metric(name, value.float(), False, prog_bar=name == "val/exact_match", rank_zero_only=True)
        metrics.reset()


def load_parser(path: str | Path, device: str | torch.device | None = None) -> SemanticParser:
    """Load a parser for :meth:`~lightning_modules.semantic_parser.SemanticParser.annotate`.

    Args:
        path: Checkpoint of a fit, such as ``RUN/parser/checkpoints/last.ckpt``.
        device: Where it runs; a GPU if there is one by default.

    Raises:
        UserError: There is no such file, or it is no parser's.
    """
    if not Path(path).is_file():
        raise UserError(f"no parser at {path}: fit one with configs/semantic_parser.yaml, or correct the path")
    checkpoint = read_checkpoint(Path(path))
    parser = SemanticParser()
    parser.on_load_checkpoint(checkpoint)
    parser.load_state_dict(checkpoint["state_dict"])
    parser.max_actions = checkpoint["parser"]["max_actions"]
    return parser.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

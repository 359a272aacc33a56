"""One model of parse trees p(y) and of utterances given a tree p(x|y)."""

from __future__ import annotations

from typing import Any, Literal

from datamodules.codec import SharedCodec
from doppel.errors import UserError
from lightning_modules.causal_lm import CausalLM

#: Source and target of each task that the model is asked for alone.
_TASKS: dict[str, tuple[Literal["parse"] | None, Literal["parse", "utterance"]]] = {
    "tree": (None, "parse"),
    "utterance": ("parse", "utterance"),
}


class SharedLM(CausalLM):
    """Both stages of the two-stage method in one set of weights, told apart by the prompt.

    Each turn gives two rows (see :class:`~datamodules.codec.SharedCodec`), and a unit of m turns the mean of 2m
    losses. The weights are those of a :class:`~lightning_modules.parse_tree_lm.ParseTreeLM` and of a
    :class:`~lightning_modules.parse2utterance.Parse2Utterance` alike: only the constructor's ``task`` differs when it
    samples.

    Formal guarantees:
        The rows of a unit are clipped together, as one gradient of norm at most C, so a step is one Poisson-subsampled
        Gaussian mechanism whatever the rows teach. One budget of T epochs trains both tasks, where two models share T
        epochs between them. Both kinds of samples are post-processing of the same release.

    Args:
        task: ``both`` to train; ``tree`` or ``utterance`` for what ``predict`` and ``test`` ask of the trained model.
    """

    def __init__(self, task: Literal["both", "tree", "utterance"] = "both", **kwargs: Any) -> None:
        source, target = _TASKS["utterance" if task == "both" else task]
        super().__init__(source=source, target=target, **kwargs)
        self.task = task
        if task == "both":
            own = self.codec
            format_ = (own.max_length, own.linearisation, own.task_prefix, own.source_dropout)
            self.codec = SharedCodec(own.tokenizer, source, target, *format_)

    def prepare_data(self) -> None:
        """Refuse to sample before it is said what; this hook runs before the data modules read anything.

        Raises:
            UserError: ``task`` is ``both``.
        """
        if self.task == "both" and self.trainer.state.fn in ("predict", "test"):
            raise UserError(
                "a SharedLM writes both trees and utterances: set model.init_args.task to tree or to utterance"
            )

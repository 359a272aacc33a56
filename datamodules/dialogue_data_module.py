"""Private (utterance, parse) turns as Poisson-sampled logical batches."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Literal

from datamodules.batches.batch import LogicalBatch
from datamodules.batches.cut import LogicalBatches, all_examples
from datamodules.batches.encoded import EncodedExamples, encode_examples
from datamodules.batches.loader import Batches, Loader
from datamodules.batches.samplers import ShuffledBatches
from datamodules.batches.shares import share
from datamodules.data_module import TrainingDataModule, check_limits
from datamodules.guards.overlap import Named, Source, refuse_private
from datamodules.guards.redaction import Redaction
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns, ReferenceColumns, check_unit, reference_columns, unit_of
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Unit
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from datamodules.reading.units import NameRule
from datamodules.training_rows import TrainingRows, first_units
from doppel.errors import DataError
from doppel.privacy.spec import usual_batch_size

log = logging.getLogger(__name__)

#: Turns that represent a unit unless told otherwise.
_DEFAULT_TURNS = {"utterance": 1, "dialogue": 4, "user": 4}


class DialogueDataModule(TrainingDataModule):
    """Turns of dialogues, tokenised once, as logical batches: one Lightning batch is one optimiser step.

    With ``sampling="poisson"`` every unit is drawn independently with probability q = ``batch_size`` / N. All ranks
    draw the same batch and each computes a share of it, which is the mechanism that the accountant assumes; batches
    vary in size and may be empty. The draw comes from the operating system's entropy, not from
    ``seed_everything``. An epoch is ceil(1 / q) steps. Where training resumes, sampling goes on at the
    trainer's ``global_step``.

    Args:
        train_path: Training file: a table (``.csv``, ``.tsv``, ``.parquet``, ``.jsonl``, ``.json``), text (``.txt``,
            one utterance a line), dialogue JSON lines, each also compressed; a folder that Hugging Face's
            ``save_to_disk`` wrote; ``hf:OWNER/NAME?split=train`` of its hub; or
            ``embedded:train?num=4000&seed=1&skew=1.0`` for the embedded grammar. ``$VARIABLE`` is filled in.
        val_path: Validation file, likewise; null for none.
        test_path: Test file, likewise; null for none.
        unit: What the guarantee protects: one ``utterance``, all rows of a ``dialogue``, or all of a ``user``, named by
            the column ``unit``. Null: an utterance (of ``columns.messages`` a dialogue, or the user that
            ``columns.unit`` names), for files without such a column or with one row for each name; others are refused
            until this is given. Public files are read as utterances.
        batch_size: Expected number of units in a logical batch, B, over all ranks. Null: a twentieth of the units, a
            function of their public number (:func:`~doppel.privacy.spec.usual_batch_size`).
        max_tokens_per_micro_batch: Token budget of a micro-batch: rows times padded length.
        max_units_per_micro_batch: Units of a micro-batch, at most: a private training with LoRA holds the gradient of
            each, 4 bytes a trained weight, which many short rows make more than their activations. Null: no bound.
        truncate: Cut requests longer than the model's ``max_length``. False: such a row keeps its place and contributes
            zero. Prompts and trees are never cut (:func:`~datamodules.batches.encoded.encode_examples`).
        max_turns_per_unit: Rows per unit and step, at most; longer units are subsampled uniformly, anew in each step.
            Public. Null: 1 for utterances, 4 for dialogues and users.
        sampling: ``poisson`` as the guarantee requires, or ``shuffle`` (fixed size) for runs without a claim.
        columns: Which columns hold the text, labels, unit and tree; null: the usual names. Validation, test and
            public files are read by these names where they have them, else by the usual ones.
        is_public: Whether all files are public, as those of the embedded grammar are: training without privacy and
            logging of metrics are then allowed.
        val_is_public: Whether the validation file is public, so that its metrics may be logged. A copy of the training
            file is refused.
        test_is_public: Whether the test file is public, likewise.
        limit_train_units: Train on at most this many first units. Refused in a private run, where one more unit would
            displace another: use ``keep_share``.
        limit_val_turns: Validate and test on at most this many first requests.
        sampling_seed: For tests only: a fixed seed makes the Poisson sample predictable and voids the guarantee.
        keep_function: Train only on requests whose tree calls this function: a call head such as ``WeatherQueryApi``,
            or a prefix and a star, ``EventOnDate*``. Evaluation data stay whole.
        shuffle_trees: A seed: permute the trees over the requests before training. A diagnostic: ε is then that of the
            shuffled rows, not of people (see :class:`~datamodules.guards.selection.Selection`).
        keep_share: Train on about this share of the units, in (0, 1], selected by a hash of their names, or of their
            content for ``utterance``: a uniform part of the file, always the same.
        redact: What is masked in each training row before tokenisation; null: nothing. No part of the guarantee (see
            :class:`~datamodules.guards.redaction.Redaction`). Evaluation data stay whole.
        unit_names: Names of units that differ in spelling alone (case, width, unseen characters; ``17``, ``017`` and
            ``17.0``; ``+49`` and ``0049``): ``folded`` makes them one unit, ``exact`` different ones. Null: a file with
            such names is refused until this is given (:class:`~datamodules.reading.units.UnitNames`).
        effort: Factor of ``batch_size``, or of a twentieth of the units; public, as they are.
    """

    def __init__(
        self,
        train_path: str,
        val_path: str | None = None,
        test_path: str | None = None,
        unit: Unit | None = None,
        batch_size: int | None = None,
        max_tokens_per_micro_batch: int = 4096,
        max_units_per_micro_batch: int | None = None,
        max_turns_per_unit: int | None = None,
        sampling: Literal["poisson", "shuffle"] = "poisson",
        val_is_public: bool = False,
        test_is_public: bool = False,
        limit_train_units: int | None = None,
        limit_val_turns: int | None = None,
        sampling_seed: int | None = None,
        keep_function: str | None = None,
        shuffle_trees: int | None = None,
        keep_share: float | None = None,
        is_public: bool = False,
        columns: Columns | None = None,
        truncate: bool = False,
        redact: Redaction | None = None,
        effort: int = 1,
        unit_names: NameRule | None = None,
    ) -> None:
        super().__init__(val_path, test_path)
        check_limits(
            batch_size=batch_size,
            effort=effort,
            max_tokens_per_micro_batch=max_tokens_per_micro_batch,
            max_units_per_micro_batch=max_units_per_micro_batch,
            max_turns_per_unit=max_turns_per_unit,
            limit_train_units=limit_train_units,
            limit_val_turns=limit_val_turns,
        )
        path = expand_path(train_path)
        self.is_public = is_public or is_embedded(path)
        named = Columns.from_config({"columns": columns})
        named = ReferenceColumns(**named.as_dict()) if is_public else named
        self.unit: Unit = unit or "utterance" if self.is_public else unit_of(unit, named)
        self._given_batch_size, self._effort = batch_size, effort
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.max_units_per_micro_batch = max_units_per_micro_batch
        self.max_rows_per_unit = max_turns_per_unit or _DEFAULT_TURNS[self.unit]
        self.sampling = sampling
        self.val_is_public = val_is_public or is_public
        self.test_is_public = test_is_public or is_public
        self.limit_train_units = limit_train_units
        self.limit_val_turns = limit_val_turns
        self.sampling_seed = sampling_seed
        self.truncate = truncate
        selection = Selection(keep_function, shuffle_trees, keep_share, Redaction.from_config(redact))
        given = self.unit if self.is_public else unit
        self.rows = TrainingRows(path, given, named, selection, unit_names)
        check_unit(unit, self.rows.columns)
        self._turns: EncodedExamples | None = None

    def load_train(self) -> None:
        """Read, tokenise and group the training turns."""
        if self.privacy_caveat:
            log.warning(self.privacy_caveat)
        text_format = self.require_text_format()
        # keep_function drops the turns without a tree
        needs = text_format.needs if self.rows.selection.keep_function is None else ()
        rows = first_units(self.rows.read(needs), self.limit_train_units)
        self._turns = turns = encode_examples(rows, text_format, self.truncate)
        if self.batch_size > turns.num_units:
            raise DataError(
                f"batch_size is {self.batch_size}, but {self.rows.path} has {turns.num_units} units "
                f"(unit: {self.unit}): give at most that, or null for a twentieth of them, and effort 1"
            )

    def load_evaluation(self, name: str, path: str) -> Batches[LogicalBatch]:
        """Read and tokenise the turns of a validation or test file."""
        text_format, columns = self.require_text_format(), reference_columns(self.rows.columns)
        turns = read_examples(path, "utterance", needs=text_format.needs, columns=columns)
        encoded = encode_examples(turns, text_format, self.truncate)
        return all_examples(encoded, self.max_tokens_per_micro_batch, self.limit_val_turns, self._is_disclosable(name))

    def refuse_private(self) -> None:
        """Refuse an evaluation file whose metrics may leave the process, or a file that a redaction or the weights at
        the start learnt of, if it is a private one.

        Raises:
            UserError: It is, in whatever form (:func:`~datamodules.guards.overlap.refuse_private`).
        """
        columns, files = reference_columns(self.rows.columns), {"val": self.val_path, "test": self.test_path}
        public: list[Named] = [
            (f"data.{name}_path", files[name], columns) for name in self.evaluation if self._is_disclosable(name)
        ]
        public += self.also_public
        if self._is_loaded and self.rows.selection.redact is not None:
            public += self.rows.selection.redact.public_files
        private: list[Source] = [] if self.is_public else [(self.rows.path, self.rows.columns)]
        private += [
            (path, columns) for name, path in files.items() if path is not None and not self._is_disclosable(name)
        ]
        refuse_private(public, [*private, *self.also_private])

    def empty_batch(self, name: str) -> LogicalBatch:
        """Build a batch without rows."""
        return LogicalBatch([], 0, 0.0, self._is_disclosable(name))

    def _is_disclosable(self, name: str) -> bool:
        return self.val_is_public if name == "val" else self.test_is_public

    @property
    def num_units(self) -> int:
        """N: number of privacy units that are trained on; known after ``setup("fit")``."""
        return self.train_examples().num_units

    @property
    def batch_size(self) -> int:
        """B: units in a step, on average over all ranks; known after ``setup("fit")``.

        Formal guarantees:
            A function of N and of the configuration, fixed before the first step: the q = B/N by which units are drawn
            is that of the plan and of the ledger, which read this.
        """
        return (self._given_batch_size or usual_batch_size(self.num_units)) * self._effort

    @property
    def privacy_caveat(self) -> str | None:
        """What a guarantee for the training data does not cover, for the ledger; None if there is nothing to say."""
        if self.rows.selection.shuffle_trees is None:
            return None
        return (
            "trees were shuffled, so that a row pairs the text and the tree of two requests: epsilon is that of the "
            "shuffled rows, not of the people behind them; a diagnostic, not to be released"
        )

    @cached_property
    def data_fingerprint(self) -> str:
        """Digest of the training file's content and of what is selected from it; never to be shown."""
        return self.rows.fingerprint

    @cached_property
    def data_file(self) -> str:
        """Digest of the whole training file; never to be shown."""
        return self.rows.data_file

    def train_dataloader(self) -> Loader[LogicalBatch]:
        """Return logical batches, beginning at the step that the trainer has reached."""
        turns = self.train_examples()
        batches = LogicalBatches(
            turns,
            self.max_tokens_per_micro_batch,
            self.max_rows_per_unit,
            self.sampling_seed,
            self.max_units_per_micro_batch,
        )
        costs, (rank, world_size) = turns.costs(self.max_rows_per_unit), self.rank_and_world_size()
        is_poisson = self.sampling == "poisson"

        def make(step: int, drawn: list[int]) -> LogicalBatch:
            divisor = float(self.batch_size) if is_poisson else len(drawn)
            return batches.make(step, share(drawn, costs, rank, world_size), divisor)

        if not is_poisson:
            return self.steps(ShuffledBatches(turns.num_units, self.batch_size, self.seed), make)
        return self.steps(self.poisson(turns.num_units, self.batch_size, self.sampling_seed), make)

    def train_examples(self) -> EncodedExamples:
        """Return the turns that are trained on, known after ``setup("fit")``."""
        if self._turns is None:
            raise RuntimeError('the training data is not loaded yet: call setup("fit") first')
        return self._turns

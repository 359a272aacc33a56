"""Public text for training the small base model: utterances, trees, and (tree, utterance) pairs."""

from __future__ import annotations

import gzip
import logging
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch, MicroBatch
from datamodules.batches.cut import pad
from datamodules.batches.loader import Loader
from datamodules.batches.samplers import ShuffledBatches
from datamodules.data_module import TrainingDataModule
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.lispress.slots import SlotKinds, to_slots

log = logging.getLogger(__name__)

_CHUNK = 10_000


def pack(examples: list[list[int]], block_length: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Pack whole examples into blocks of equal length, each into the fullest block that still holds it.

    Examples longer than a block are left out.

    Args:
        examples: Token ids, in the order in which they are placed.
        block_length: Tokens in a block.
        pad_id: Fills what is left of a block.

    Returns:
        Blocks [num_blocks, block_length] and the used lengths [num_blocks], both int32.
    """
    contents: list[list[int]] = []
    open_by_space: list[list[int]] = [[] for _ in range(block_length + 1)]
    occupied = 0  # bit s is set where a block with s free positions is open
    for ids in examples:
        if len(ids) > block_length:
            continue
        fitting = occupied >> len(ids)
        if fitting:
            space = len(ids) + (fitting & -fitting).bit_length() - 1
            block = open_by_space[space].pop()
            if not open_by_space[space]:
                occupied &= ~(1 << space)
        else:
            space, block = block_length, len(contents)
            contents.append([])
        contents[block].extend(ids)
        left = space - len(ids)
        open_by_space[left].append(block)
        occupied |= 1 << left
    lengths = torch.tensor([len(c) for c in contents], dtype=torch.int32)
    rows = [torch.tensor(ids, dtype=torch.int32) for ids in [*contents, [pad_id] * block_length]]  # the last is as wide
    return pad_sequence(rows, batch_first=True, padding_value=pad_id)[:-1], lengths


def _slotted(turn: Example, kinds: SlotKinds) -> Example:
    slotted = to_slots(turn.parse or "", turn.utterance, kinds)
    return replace(turn, utterance=slotted.utterance, parse=slotted.tree)


def _read_utterances(path: str, limit: int | None) -> list[str]:
    if not Path(path).is_file():
        raise DataError(
            f"no utterances at {path}: put a text file there, plain or .gz, one utterance a line, "
            "or set utterances_path to null"
        )
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return list(islice((text for line in lines if (text := line.strip())), limit))


class TextMixtureDataModule(TrainingDataModule):
    """Blocks of public utterances, grammar trees and (tree, utterance) pairs, as the text format writes them.

    Training examples are those of p(x), p(y) and p(x|y) as :class:`~datamodules.text_format.TextFormat` writes them,
    all with loss on every token, packed whole into blocks. The model attends across the examples of a block, which
    ``<eos>`` sets apart. Validation examples are held-out grammar pairs, one a row: with ``val_conditional`` their loss
    is that of p(utterance | tree), without it that of p(utterance). Held-out utterances of the file may stand beside
    them.

    Everything here is public: never point it at private text.

    Args:
        utterances_path: Text file, plain or .gz, with one utterance a line; null for grammar pairs alone.
        grammar_turns: Turns drawn from the embedded grammar.
        grammar_seed: Seed of that draw; validation pairs come from the next seed, less those trained on.
        batch_size: Blocks in a batch, over all ranks.
        block_length: Tokens in a block. Longer examples are left out, with a warning that counts them.
        max_utterances: Use at most this many utterances, from the start of the file.
        num_val_pairs: Held-out pairs for validation.
        tree_share: Share of the grammar turns whose tree also appears alone.
        grammar_skew: Skew of the grammar's choices; 1 is like real use, 0 is flat.
        slot_share: Share of the grammar turns in which slots stand for names, see :mod:`doppel.lispress.slots`.
        val_conditional: Whether validation masks the tree as a prompt, or leaves it out.
        val_batch_size: Validation examples in a batch.
        num_val_utterances: Utterances of the file for validation: those behind ``max_utterances``, which must be set.
    """

    is_public = True

    def __init__(
        self,
        utterances_path: str | None = None,
        grammar_turns: int = 50_000,
        grammar_seed: int = 1,
        batch_size: int = 64,
        block_length: int = 128,
        max_utterances: int | None = None,
        num_val_pairs: int = 500,
        tree_share: float = 0.3,
        grammar_skew: float = 1.0,
        slot_share: float = 0.0,
        val_conditional: bool = True,
        val_batch_size: int = 32,
        num_val_utterances: int = 0,
    ) -> None:
        held_out = f"embedded:val?num={4 * num_val_pairs + 1000}&seed={grammar_seed + 1}&skew={grammar_skew}"
        super().__init__(val_path=held_out)
        if not 0 <= tree_share <= 1:
            raise DataError(f"tree_share is {tree_share}: give a share between 0 and 1")
        if num_val_utterances and (utterances_path is None or max_utterances is None):
            raise DataError(
                f"num_val_utterances is {num_val_utterances}: they are those of utterances_path behind max_utterances, "
                "so give both"
            )
        if not 0 <= slot_share <= 1:
            raise DataError(f"slot_share is {slot_share}: give a share between 0 and 1")
        self.utterances_path = utterances_path
        self.grammar_turns = grammar_turns
        self.grammar_seed = grammar_seed
        self.batch_size = batch_size
        self.block_length = block_length
        self.max_utterances = max_utterances
        self.num_val_pairs = num_val_pairs
        self.tree_share = tree_share
        self.grammar_skew = grammar_skew
        self.slot_share = slot_share
        self.val_conditional = val_conditional
        self.val_batch_size = val_batch_size
        self.num_val_utterances = num_val_utterances

    @cached_property
    def _turns(self) -> list[Example]:
        drawn = f"embedded:train?num={self.grammar_turns}&seed={self.grammar_seed}&skew={self.grammar_skew}"
        return read_examples(drawn, "dialogue")

    @property
    def described(self) -> dict[str, Any]:
        """What a model that was trained on it has seen, for its card."""
        file = None if self.utterances_path is None else Path(self.utterances_path).name
        names = ("max_utterances", "grammar_turns", "grammar_seed", "grammar_skew", "tree_share", "slot_share")
        return {"utterances": file, **{name: getattr(self, name) for name in names}}

    def load_train(self) -> None:
        """Generate, tokenise and pack."""
        text_format = self.require_text_format()
        public = _read_utterances(self.utterances_path, self.max_utterances) if self.utterances_path else []
        alone = replace(text_format, source=None, target="utterance")
        pairs = self._with_slots(self._turns)
        lone = pairs[: round(self.tree_share * len(pairs))]
        examples = [
            *self._encode([Example(text, None, "") for text in public], alone),
            *self._encode(pairs, replace(alone, source="parse")),
            *self._encode(lone, replace(alone, target="parse")),
        ]

        order = np.random.default_rng(self.seed).permutation(len(examples))
        self._blocks, self._lengths = pack([examples[i] for i in order], self.block_length, text_format.pad_id)
        left_out = sum(len(ids) > self.block_length for ids in examples)
        if left_out:
            log.warning(
                "%d of %d examples are longer than block_length=%d and were left out: raise it to keep them",
                left_out,
                len(examples),
                self.block_length,
            )
        log.info(
            "%d examples in %d blocks, %.1f %% padding",
            len(examples) - left_out,
            len(self._blocks),
            100 * (1 - self._lengths.sum().item() / max(self._blocks.numel(), 1)),
        )

    def load_evaluation(self, name: str, path: str) -> list[LogicalBatch]:
        """Grammar pairs and utterances that are not trained on, sorted by length."""
        text_format = self.require_text_format()
        seen = {(t.utterance, t.parse) for t in self._turns}
        pairs: dict[tuple[str, str | None], Example] = {}
        for turn in read_examples(path, "dialogue"):
            pairs.setdefault((turn.utterance, turn.parse), turn)
        turns = [turn for pair, turn in pairs.items() if pair not in seen][: self.num_val_pairs]
        if len(turns) < self.num_val_pairs:
            log.warning("only %d held-out pairs were found; %d were asked for", len(turns), self.num_val_pairs)
        held_out = replace(text_format, source="parse" if self.val_conditional else None, target="utterance")
        rows = held_out.encode_all(turns)
        if self.num_val_utterances:
            assert self.utterances_path is not None and self.max_utterances is not None
            both = _read_utterances(self.utterances_path, self.max_utterances + self.num_val_utterances)
            texts = both[self.max_utterances :]
            if len(texts) < self.num_val_utterances:
                log.warning("only %d utterances are left; %d were asked for", len(texts), self.num_val_utterances)
            alone = replace(text_format, source=None, target="utterance")
            rows += alone.encode_all([Example(text, None, "") for text in texts])
        rows = [row for row in rows if len(row.input_ids) <= text_format.max_length]
        rows.sort(key=lambda row: len(row.input_ids))
        batches = []
        for start in range(0, len(rows), self.val_batch_size):
            chunk = rows[start : start + self.val_batch_size]
            padded = pad([r.input_ids for r in chunk], [r.num_prompt for r in chunk], text_format.pad_id)
            batches.append(
                LogicalBatch([MicroBatch(*padded, len(chunk))], len(chunk), float(len(chunk)), is_public=True)
            )
        return batches

    def empty_batch(self, name: str) -> LogicalBatch:
        """Without rows."""
        return LogicalBatch([], 0, 0.0, is_public=True)

    def train_dataloader(self) -> Loader[LogicalBatch]:
        """Shuffled blocks, one logical batch each step."""
        rank, world_size = self.rank_and_world_size()

        def make(step: int, drawn: list[int]) -> LogicalBatch:
            mine = drawn[rank::world_size]
            input_ids = self._blocks[mine].long()
            mask = torch.arange(input_ids.shape[1]) < self._lengths[mine].unsqueeze(1)
            micro_batch = MicroBatch(input_ids, input_ids.masked_fill(~mask, IGNORE_INDEX), len(mine))
            return LogicalBatch([micro_batch] if mine else [], len(mine), len(drawn), is_public=True)

        return self.steps(ShuffledBatches(len(self._blocks), self.batch_size, self.seed), make)

    def _with_slots(self, turns: list[Example]) -> list[Example]:
        """The turns, an evenly spread share of them with slots."""
        kinds, share = slot_table(SHIPPED).kinds, self.slot_share
        return [
            _slotted(turn, kinds) if int((i + 1) * share) > int(i * share) else turn for i, turn in enumerate(turns)
        ]

    def _encode(self, turns: list[Example], text_format: TextFormat) -> list[list[int]]:
        parts = (text_format.encode_all(turns[i : i + _CHUNK]) for i in range(0, len(turns), _CHUNK))
        return [example.input_ids for part in parts for example in part]

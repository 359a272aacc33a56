"""Rows that go through the model together, and the prompts that wait for a row."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from lightning_modules.decoding.constraint import TreeConstraint, TreeState
from lightning_modules.decoding.slot_cache import SlotCache

_PROMPT_TOKENS = 8192  # most tokens of a forward that reads prompts
_READ_TOGETHER = 4  # prompts that are read together however unequal they are
_PADDING = 0.85  # of the longest prompt in a forward, below which another prompt waits for the next forward
_SPARE_COLUMNS = 64  # of the cache at first, beyond the longest prompt
_WAIT = 8  # prompts wait until an eighth of the slots is free, so that they are read in batches


def forward_arguments(model: PreTrainedModel) -> set[str]:
    """Names that the model's forward takes; those of the model inside, if adapters are wrapped around it."""
    inner: Callable[[], Any] | None = getattr(model, "get_base_model", None)
    base = model if inner is None else inner()
    return set(inspect.signature(base.forward).parameters)


@dataclass(frozen=True)
class Request:
    """One text to write.

    Attributes:
        prompt: Ids that the model reads first; at least one.
        limit: Most ids to write, the end of text included; at least one.
    """

    prompt: list[int]
    limit: int


@dataclass(frozen=True)
class DrawingRule:
    """How the next token is drawn from the model's logits.

    Attributes:
        num_beams: Beams of each text; 1 samples token by token.
        top_k: Tokens kept; 0 keeps all.
        top_p: Probability mass kept; 1 keeps all.
        temperature: Divides the scores before they are cut.
        never: Ids that are never drawn.
        eos_id: Ends a text.
        constraint: Forbids tokens before the scores are cut; None forbids none.
    """

    num_beams: int
    top_k: int
    top_p: float
    temperature: float
    never: tuple[int, ...]
    eos_id: int
    constraint: TreeConstraint | None = None


class Slots(ABC):
    """Writes texts, many at a time: a text that ends leaves its row to the next prompt.

    The rows in use are always rows 0 … n-1, where row r is text ``texts[r]``. Every prompt is read once, all but its
    last token; that one goes in with the first step, and from then on every row takes ``num_beams`` tokens a step, all
    at the same position. When no prompt is left the rows shrink to those still being written.

    Subclasses hold what a row has drawn so far.

    Args:
        model: In evaluation mode; see :func:`lightning_modules.decoding.decode.is_supported`.
        rule: How to draw.
        num_slots: Most rows at a time.
    """

    def __init__(self, model: PreTrainedModel, rule: DrawingRule, num_slots: int) -> None:
        self.model = model
        self.rule = rule
        self.num_slots = num_slots
        self.device = model.device
        self.texts: list[int] = []
        self.requests: Sequence[Request] = []
        #: Columns of the cache that each row has filled.
        self.filled: list[int] = []
        self._is_additive = model.config.get_text_config()._attn_implementation == "eager"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in forward_arguments(model) else {}
        self.never = torch.tensor(rule.never, dtype=torch.long, device=self.device)

    def write(self, requests: Sequence[Request]) -> list[list[int]]:
        """Write a text for each request.

        Returns:
            Ids of each text, in the order of the requests, with the end-of-text id where the model ended it.
        """
        self.requests = requests
        self.texts, self.filled = [], []
        longest_first = sorted(range(len(requests)), key=lambda i: (-len(requests[i].prompt), requests[i].prompt))
        waiting = deque(longest_first)
        written: list[list[int]] = [[] for _ in requests]
        num_layers = self.model.config.get_text_config().num_hidden_layers
        longest = max((len(r.prompt) for r in requests), default=0)
        num_slots = min(self.num_slots, len(requests))
        self.cache = SlotCache(num_layers, num_slots, longest + _SPARE_COLUMNS)
        while waiting or self.texts:
            num_new = min(num_slots - len(self.texts), len(waiting))
            needs_reading = num_new > 0 and len(requests[waiting[0]].prompt) > 1
            if num_new and num_new >= (min(max(1, num_slots // _WAIT), len(waiting)) if needs_reading else 1):
                self._admit([waiting.popleft() for _ in range(num_new)])
            ended = self.step()
            for row, ids in ended.items():
                written[self.texts[row]] = ids
            if ended:
                self._leave(set(ended))
        return written

    @abstractmethod
    def start(self, first: int, requests: Sequence[Request]) -> None:
        """Rows ``first``, ``first + 1``, … begin texts; their prompts but for the last token are in the cache."""

    @abstractmethod
    def step(self) -> dict[int, list[int]]:
        """Draw the next tokens of every row; the ids of each row that has ended."""

    @abstractmethod
    def move(self, source: Tensor, target: Tensor, num_rows: int) -> None:
        """State of rows ``source`` goes to rows ``target``, then only the first ``num_rows`` rows are left."""

    def forbid(self, scores: Tensor, trees: Sequence[TreeState | None], num_written: Sequence[int]) -> None:
        """Set the scores of what may not come next to minus infinity, in place.

        Args:
            scores: Shape [rows, vocabulary] or [rows, beams, vocabulary].
            trees: Where the text of each row, or beam, is in the grammar.
            num_written: Tokens that each row has.
        """
        scores.index_fill_(-1, self.never, -torch.inf)
        constraint, beams = self.rule.constraint, range(self.rule.num_beams)
        if constraint is not None:
            limits = [self.requests[text].limit for text in self.texts]
            num_left = [limit - number for limit, number in zip(limits, num_written, strict=True) for _ in beams]
            mask = constraint.mask(trees, num_left, scores.flatten(0, -2))
            scores.masked_fill_(mask.view_as(scores), -torch.inf)

    def forward(self, tokens_RN: Tensor, positions_RN: Tensor, columns_RN: Tensor, mask_RNC: Tensor) -> Tensor:
        """Logits of the rows' next tokens in float32 at least, forbidden ones included.

        Args:
            tokens_RN: N tokens of each row.
            positions_RN: Their positions in the text.
            columns_RN: Where the cache keeps them.
            mask_RNC: Which columns each token looks at.

        Returns:
            Shape [R, N, vocabulary].
        """
        self.cache.write_next(columns_RN, mask_RNC.shape[-1])
        mask = mask_RNC[:, None]
        if self._is_additive:
            dtype = self.model.dtype
            mask = torch.zeros(mask.shape, dtype=dtype, device=self.device).masked_fill(~mask, torch.finfo(dtype).min)
        output = self.model(
            input_ids=tokens_RN,
            position_ids=positions_RN,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = output.logits
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _admit(self, texts: list[int]) -> None:
        """Read prompts into the free rows, each distinct prompt once, in forwards of bounded size."""
        first = len(self.texts)
        requests = [self.requests[i] for i in texts]
        prompts = [tuple(r.prompt[:-1]) for r in requests]
        distinct = dict.fromkeys(p for p in prompts if p)
        start = 0
        unread = list(distinct)  # longest first, as the texts are
        while start < len(unread):
            longest = len(unread[start])
            part = unread[start : start + max(1, _PROMPT_TOKENS // longest)]
            part = [p for i, p in enumerate(part) if i < _READ_TOGETHER or len(p) >= _PADDING * longest]
            start += len(part)
            number = {prompt: i for i, prompt in enumerate(part)}
            rows = [first + i for i, prompt in enumerate(prompts) if prompt in number]
            self._read(part, rows, [number[prompts[row - first]] for row in rows])
        self.texts += texts
        self.filled += [len(p) for p in prompts]
        self.start(first, requests)

    def _read(self, prompts: Sequence[Sequence[int]], rows: list[int], source: list[int]) -> None:
        """One forward over prompts; padding is on the right, where no prompt looks and the next tokens overwrite it."""
        length = len(prompts[0])
        ids_PT = pad_sequence([torch.tensor(p) for p in prompts], batch_first=True).to(self.device)
        rows_R, source_R = torch.tensor(rows, device=self.device), torch.tensor(source, device=self.device)
        self.cache.write_prompts(rows_R, length, source_R)
        self.model(
            input_ids=ids_PT,
            position_ids=torch.arange(length, device=self.device).expand(len(prompts), -1),
            attention_mask=torch.ones_like(ids_PT),
            past_key_values=self.cache,
            use_cache=True,
            **self._last_only,
        )

    def _leave(self, ended: set[int]) -> None:
        """Give up rows; the last rows in use move to where they were."""
        num_left = len(self.texts) - len(ended)
        target = sorted(row for row in ended if row < num_left)
        source = [row for row in range(num_left, len(self.texts)) if row not in ended]
        for to, row in zip(target, source, strict=True):
            self.texts[to], self.filled[to] = self.texts[row], self.filled[row]
        source_M, target_M = torch.tensor(source, device=self.device), torch.tensor(target, device=self.device)
        if source:
            self.cache.move_rows(source_M, target_M, max(self.filled[row] for row in source))
        del self.texts[num_left:], self.filled[num_left:]
        self.move(source_M.long(), target_M.long(), num_left)

"""Texts for many prompts, drawn token by token: a text that ends leaves its row to the next prompt."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from doppel.decoding.candidates import candidates, draw
from doppel.decoding.row_cache import RowCache

_NEEDED = ("input_ids", "attention_mask", "position_ids", "past_key_values")  # of a model's forward
_PROMPT_TOKENS = 8192  # most tokens of a forward that reads prompts
_READ_TOGETHER = 4  # prompts that are read together however unequal they are
_PADDING = 0.85  # of the longest prompt in a forward, below which another prompt waits for the next forward
_SPARE_COLUMNS = 64  # of the cache at first, beyond the longest prompt
_FULL, _SLIDING = "full_attention", "sliding_attention"  # kinds of layers
_WAIT = 8  # prompts wait until an eighth of the rows is free, so that they are read in batches


def _forward_arguments(model: PreTrainedModel) -> set[str]:
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
        stream: Random numbers of its own, so that they do not depend on which texts are written with it; None, for all
            requests or for none: the global generator of the model's device.
    """

    prompt: list[int]
    limit: int
    stream: np.random.Generator | None = None

    @property
    def num_tokens(self) -> int:
        """Most tokens of prompt and text."""
        return len(self.prompt) + self.limit


class Constraint(Protocol):
    """Forbids tokens by what was written before."""

    def start(self) -> Any:
        """Return the state before the first token."""

    def advance(self, state: Any, token: int) -> None:
        """Move a state past one more token."""

    def mask(self, states: Sequence[Any], like: Tensor) -> Tensor:
        """Return booleans of the shape of the scores ``like``, true where a token is forbidden."""


@dataclass(frozen=True)
class DrawingRule:
    """How the next token is drawn from the model's logits.

    Attributes:
        top_k: Tokens kept; 0 keeps all.
        top_p: Probability mass kept; 1 keeps all.
        temperature: Divides the scores before they are cut.
        never: Ids that are never drawn.
        eos_id: Ends a text; None: nothing does.
        constraint: Forbids tokens before the scores are cut; None forbids none.
    """

    top_k: int
    top_p: float
    temperature: float
    never: tuple[int, ...]
    eos_id: int | None
    constraint: Constraint | None = None


def longest_decodable(model: PreTrainedModel) -> float:
    """Return how many tokens prompt and text may have to be decoded row by row with masks and positions of our own.

    Infinitely many if every layer attends to all of the past; no more than a sliding window has, inside which a layer
    does the same. Positions have to come as an argument, and attention has to run through ``sdpa`` or ``eager``, which
    take a mask for each query. GPT-2, GPT-NeoX, OPT, Llama, Qwen 2 and 3 and Phi are unbounded; Mistral, Phi 3, Gemma 2
    and 3 and gpt-oss have windows. It is 0 for Bloom, MPT and Falcon with ALiBi (positions from the mask), GPT-Neo
    (windows that no mask replaces), Mamba and RWKV (recurrence), encoder-decoders and prompt-tuned models.
    """
    config = model.config.get_text_config()
    if config.is_encoder_decoder or not _forward_arguments(model).issuperset(_NEEDED):
        return 0
    adapters: Any = getattr(model, "active_peft_config", None)
    if adapters is not None and adapters.is_prompt_learning:
        return 0
    if getattr(config, "_attn_implementation", None) not in ("sdpa", "eager"):
        return 0
    if "local" in (getattr(config, "attention_layers", None) or []) or getattr(config, "alibi", False):
        return 0
    window: int | None = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [_FULL if window is None else _SLIDING])
    if not kinds <= {_FULL, _SLIDING} or getattr(config, "attention_chunk_size", None):
        return 0
    return window or 0 if _SLIDING in kinds else math.inf


@torch.inference_mode()
def decode(model: PreTrainedModel, requests: Sequence[Request], rule: DrawingRule, max_rows: int) -> list[list[int]]:
    """Write a text for each request.

    Args:
        model: In evaluation mode.
        requests: Prompts and their longest texts; prompt and text fit the model's positions, and are no longer than
            :func:`longest_decodable` says.
        rule: How to draw.
        max_rows: Most texts that go through the model together.

    Returns:
        Ids of each text, with the end-of-text id where the model ended it.
    """
    return DecodingBatch(model, requests, rule, max_rows).write()


class DecodingBatch:
    """Writes texts, many at a time, each drawn from the model's own distribution whatever the other texts are.

    The rows in use are always rows 0 … n-1, where row r is text ``texts[r]``. Every prompt is read once, all but its
    last token; that one goes in with the first step, and from then on every row takes one token a step. A text that
    ends leaves its row to the next prompt; when no prompt is left the rows shrink to those still being written.

    Args:
        model: As for :func:`decode`; likewise the rest.
    """

    def __init__(self, model: PreTrainedModel, requests: Sequence[Request], rule: DrawingRule, max_rows: int) -> None:
        self.model = model
        self.requests = requests
        self.rule = rule
        self.max_rows = min(max_rows, len(requests))
        self.device = model.device
        self.texts: list[int] = []
        #: Columns of the cache that each row has filled, on the host and on the model's device.
        self.filled: list[int] = []
        self._filled_R = torch.empty(0, dtype=torch.long, device=self.device)
        #: The token of each row that goes in next.
        self._last_R = torch.empty(0, dtype=torch.long, device=self.device)
        #: What each row has written, and where that is in the grammar.
        self._ids: list[list[int]] = []
        self._states: list[Any] = []
        self._is_additive = model.config.get_text_config()._attn_implementation == "eager"
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in _forward_arguments(model) else {}
        self.never = torch.tensor(rule.never, dtype=torch.long, device=self.device)
        longest = max((len(r.prompt) for r in requests), default=0)
        num_layers = model.config.get_text_config().num_hidden_layers
        self.cache = RowCache(num_layers, self.max_rows, longest + _SPARE_COLUMNS)

    def write(self) -> list[list[int]]:
        """Write all texts, once."""
        requests, max_rows = self.requests, self.max_rows
        waiting = deque(sorted(range(len(requests)), key=lambda i: (-len(requests[i].prompt), requests[i].prompt)))
        written: list[list[int]] = [[] for _ in requests]
        while waiting or self.texts:
            num_new = min(max_rows - len(self.texts), len(waiting))
            needs_reading = num_new > 0 and len(requests[waiting[0]].prompt) > 1
            if num_new and num_new >= (min(max(1, max_rows // _WAIT), len(waiting)) if needs_reading else 1):
                self._admit([waiting.popleft() for _ in range(num_new)])
            ended = self.step()
            for row, ids in ended.items():
                written[self.texts[row]] = ids
            if ended:
                self._leave(set(ended))
        return written

    def step(self) -> dict[int, list[int]]:
        """Draw one token for each row; the ids of each row whose text has ended."""
        rule = self.rule
        scores_RV = self.forward()
        scores_RV.index_fill_(-1, self.never, -torch.inf)
        if rule.constraint is not None:
            scores_RV.masked_fill_(rule.constraint.mask(self._states, scores_RV), -torch.inf)
        if rule.temperature != 1:
            scores_RV = scores_RV / rule.temperature
        kept_RK, ids_RK = candidates(scores_RV, rule.top_k, rule.top_p)
        points_R1 = self._points()
        if points_R1 is not None and rule.top_p < 1:  # a stream's number means a place in the order of the vocabulary
            order_RK = ids_RK.argsort(-1)
            kept_RK, ids_RK = kept_RK.gather(1, order_RK), ids_RK.gather(1, order_RK)
        self._last_R = ids_RK.gather(1, draw(kept_RK, points_R1)).flatten()
        self._filled_R = self._filled_R + 1
        ended = {}
        for row, token in enumerate(self._last_R.tolist()):
            ids = self._ids[row]
            ids.append(token)
            self.filled[row] += 1
            if token == rule.eos_id or len(ids) == self.requests[self.texts[row]].limit:
                ended[row] = ids
            elif rule.constraint is not None:
                rule.constraint.advance(self._states[row], token)
        return ended

    def _points(self) -> Tensor | None:
        """A number in [0, 1) for each row, of its text's stream."""
        streams = [self.requests[text].stream for text in self.texts]
        points = [[stream.random()] for stream in streams if stream is not None]
        return torch.tensor(points, dtype=torch.float64, device=self.device) if points else None

    def forward(self) -> Tensor:
        """Return logits of the rows' next tokens, at least float32, forbidden ones included: [rows, vocabulary].

        A row's column is its position, so it sees all columns up to its own.
        """
        columns_R1 = self._filled_R[:, None]
        num_visible = max(self.filled) + 1
        self.cache.write_next(columns_R1, num_visible)
        mask = (torch.arange(num_visible, device=self.device) <= columns_R1)[:, None, None]
        if self._is_additive:
            dtype = self.model.dtype
            mask = torch.zeros(mask.shape, dtype=dtype, device=self.device).masked_fill(~mask, torch.finfo(dtype).min)
        output = self.model(
            input_ids=self._last_R[:, None],
            position_ids=columns_R1,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits_RV: Tensor = output.logits[:, -1]
        return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))

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
        self._ids += [[] for _ in texts]
        if self.rule.constraint is not None:
            self._states += [self.rule.constraint.start() for _ in texts]
        last_R = torch.tensor([r.prompt[-1] for r in requests], device=self.device)
        filled_R = torch.tensor([len(p) for p in prompts], device=self.device)
        self._last_R, self._filled_R = torch.cat([self._last_R, last_R]), torch.cat([self._filled_R, filled_R])

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
            self._ids[to] = self._ids[row]
            if self._states:
                self._states[to] = self._states[row]
        for of_rows in (self.texts, self.filled, self._ids, self._states):
            del of_rows[num_left:]
        source_M = torch.tensor(source, dtype=torch.long, device=self.device)
        target_M = torch.tensor(target, dtype=torch.long, device=self.device)
        if source:
            self.cache.move_rows(source_M, target_M, max(self.filled[row] for row in target))
        for tensor_R in (self._last_R, self._filled_R):
            tensor_R[target_M] = tensor_R[source_M]
        self._last_R, self._filled_R = self._last_R[:num_left], self._filled_R[:num_left]

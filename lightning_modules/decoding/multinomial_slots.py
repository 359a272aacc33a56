"""Sampling token by token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_modules.decoding.candidates import candidates, draw
from lightning_modules.decoding.constraint import TreeState
from lightning_modules.decoding.slots import Request, Slots


class MultinomialSlots(Slots):
    """Draws every token from the cut and tempered distribution of the model; a row is one text."""

    _last_R: Tensor
    _filled_R: Tensor
    _ids: list[list[int]]
    _trees: list[TreeState | None]

    def start(self, first: int, requests: Sequence[Request]) -> None:
        """The last token of each prompt is the first that goes in."""
        last = torch.tensor([r.prompt[-1] for r in requests], device=self.device)
        filled = torch.tensor([len(r.prompt) - 1 for r in requests], device=self.device)
        if not first:
            self._ids, self._trees = [], []
        self._last_R = torch.cat([self._last_R, last]) if first else last
        self._filled_R = torch.cat([self._filled_R, filled]) if first else filled
        self._ids += [[] for _ in requests]
        self._trees += [None if self.rule.constraint is None else self.rule.constraint.start] * len(requests)

    def step(self) -> dict[int, list[int]]:
        """Draw one token for each row."""
        rule = self.rule
        scores_RV = self._scores()
        self.forbid(scores_RV, self._trees, [len(ids) for ids in self._ids])
        if rule.temperature != 1:
            scores_RV = scores_RV / rule.temperature
        kept_RK, ids_RK = candidates(scores_RV, rule.top_k, rule.top_p)
        self._last_R = ids_RK.gather(1, draw(kept_RK)).flatten()
        self._filled_R = self._filled_R + 1
        ended = {}
        for row, token in enumerate(self._last_R.tolist()):
            ids = self._ids[row]
            ids.append(token)
            self.filled[row] += 1
            if token == rule.eos_id or len(ids) == self.requests[self.texts[row]].limit:
                ended[row] = ids
            elif rule.constraint is not None:
                self._trees[row] = rule.constraint.advance(self._trees[row], token)
        return ended

    def _scores(self) -> Tensor:
        """Logits of the next tokens; a row's column is its position, so it sees all columns up to its own."""
        columns_R1 = self._filled_R[:, None]
        seen_C = torch.arange(max(self.filled) + 1, device=self.device)
        mask_R1C = (seen_C <= columns_R1)[:, None]
        return self.forward(self._last_R[:, None], columns_R1, columns_R1, mask_R1C)[:, -1]

    def move(self, source: Tensor, target: Tensor, num_rows: int) -> None:
        """Move the last tokens, the ids and where they are in the grammar."""
        for state in (self._last_R, self._filled_R):
            state[target] = state[source]
        self._last_R, self._filled_R = self._last_R[:num_rows], self._filled_R[:num_rows]
        for to, row in zip(target.tolist(), source.tolist(), strict=True):
            self._ids[to], self._trees[to] = self._ids[row], self._trees[row]
        del self._ids[num_rows:], self._trees[num_rows:]

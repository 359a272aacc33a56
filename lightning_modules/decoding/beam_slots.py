"""Beam sampling with one row a text: the beams share a cache row and differ in what they may look at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.decoding.candidates import candidates
from lightning_modules.decoding.constraint import TreeState
from lightning_modules.decoding.slots import Request, Slots

_DEAD = -1.0e9  # added to the score of a beam that may not go on
_WIDTH = 64  # columns by which buffers grow
_PRUNE_EVERY = 16  # steps, after which columns that no beam looks at are dropped


class BeamSlots(Slots):
    """Hugging Face's beam sampling (``generate`` with ``do_sample`` and ``num_beams``), length penalty 1.

    At each step, 2·``num_beams`` continuations of a text's beams are drawn without replacement in proportion to the
    probability of the whole beam. Those among the first ``num_beams`` drawn that end are candidates for the outcome,
    by their mean log-probability per token; the likeliest ``num_beams`` that do not end go on. A text is done when its
    best running beam has a lower mean than every one of ``num_beams`` ended ones, or at its longest length.

    The prompt is read and kept once for all beams. Each step writes the beams' entries side by side into the text's row
    of the cache, and a mask says which of them are a beam's ancestors: choosing beams reorders rows of that mask and no
    keys or values. Entries that no beam descends from are dropped every few steps.
    """

    _state: dict[str, Tensor]
    _lengths: list[int]
    _num_steps: int
    _trees: list[list[TreeState | None]]

    def start(self, first: int, requests: Sequence[Request]) -> None:
        """All beams are the prompt; only the first counts at the first step."""
        rows, beams, device = len(requests), self.rule.num_beams, self.device
        filled = torch.tensor([len(r.prompt) - 1 for r in requests], device=device)
        width = max(self.filled) + beams * _PRUNE_EVERY
        scores = torch.zeros(rows, beams, device=device)
        scores[:, 1:] = _DEAD
        new = {
            "last": torch.tensor([[r.prompt[-1]] * beams for r in requests], device=device),
            "filled": filled,
            "position": filled,
            "limit": torch.tensor([r.limit for r in requests], device=device),
            "length": torch.zeros(rows, dtype=torch.long, device=device),
            "scores": scores,
            "sees": (torch.arange(width, device=device) < filled[:, None, None]).expand(-1, beams, -1),
            "ids": torch.zeros(rows, beams, _WIDTH, dtype=torch.long, device=device),
            "ended_scores": torch.full((rows, beams), _DEAD, device=device),
            "is_ended": torch.zeros(rows, beams, dtype=torch.bool, device=device),
            "best": torch.zeros(rows, _WIDTH, dtype=torch.long, device=device),
            "best_length": torch.zeros(rows, dtype=torch.long, device=device),
            "may_improve": torch.ones(rows, dtype=torch.bool, device=device),
        }
        if not first:
            self._lengths, self._trees, self._num_steps = [], [], 0
        self._state = {name: _append(self._state[name], value) for name, value in new.items()} if first else new
        self._lengths += [0] * rows
        tree = None if self.rule.constraint is None else self.rule.constraint.start
        self._trees += [[tree] * beams for _ in range(rows)]

    def step(self) -> dict[int, list[int]]:
        """Draw continuations, part them into ended and running ones, and see which texts are done."""
        s, num, rows = self._state, self.rule.num_beams, len(self.texts)
        columns_RN = s["filled"][:, None] + torch.arange(num, device=self.device)
        num_visible = max(self.filled) + num
        s["sees"] = _widen(s["sees"], num_visible).scatter(2, columns_RN[:, :, None], True)
        positions_RN = s["position"][:, None].expand(-1, num)
        logits_RNV = self.forward(s["last"], positions_RN, columns_RN, s["sees"][:, :, :num_visible])
        s["filled"], s["position"] = s["filled"] + num, s["position"] + 1
        self.filled = [number + num for number in self.filled]

        log_probs_RNK, ids_RNK = self._next_tokens(logits_RNV)
        sums = (log_probs_RNK + s["scores"][:, :, None]).flatten(1)
        drawn_RM = torch.multinomial(sums.softmax(-1), 2 * num)
        scores_RM = sums.gather(1, drawn_RM)
        beams_RM = drawn_RM // ids_RNK.shape[-1]
        tokens_RM = ids_RNK.flatten(1).gather(1, drawn_RM)
        s["ids"], s["best"] = (_widen(s[name], max(self._lengths) + 1) for name in ("ids", "best"))
        length_R1 = s["length"][:, None] + 1
        ends_RM = (tokens_RM == self.rule.eos_id) | (length_R1 >= s["limit"][:, None])
        self._keep_ended(scores_RM, beams_RM, tokens_RM, ends_RM)

        s["scores"], chosen_RN = (scores_RM + ends_RM * _DEAD).topk(num)
        s["last"] = tokens_RM.gather(1, chosen_RN)
        parents_RN = beams_RM.gather(1, chosen_RN)
        parents = (torch.arange(rows, device=self.device)[:, None] * num + parents_RN).flatten()
        for name in ("sees", "ids"):
            s[name] = s[name].flatten(0, 1).index_select(0, parents).unflatten(0, (rows, num))
        s["ids"].scatter_(2, s["length"][:, None, None].expand(-1, num, 1), s["last"][:, :, None])
        if self.rule.constraint is not None:
            advance = self.rule.constraint.advance
            self._trees = [
                [advance(trees[parent], token) for parent, token in zip(of_row, last, strict=True)]
                for trees, of_row, last in zip(self._trees, parents_RN.tolist(), s["last"].tolist(), strict=True)
            ]
        s["length"] = length_R1[:, 0]
        self._lengths = [length + 1 for length in self._lengths]
        worst_R1 = s["ended_scores"].amin(1, keepdim=True)
        to_beat_RN = torch.where(s["is_ended"], worst_R1, _DEAD)
        s["may_improve"] = s["may_improve"] & (s["scores"][:, :1] / length_R1 > to_beat_RN).any(1)

        self._num_steps += 1
        if self._num_steps % _PRUNE_EVERY == 0:
            self._prune()
        done = (~s["may_improve"] | (s["length"] >= s["limit"])).nonzero().flatten()
        best, lengths = s["best"][done].tolist(), s["best_length"][done].tolist()
        return {row: ids[:length] for row, ids, length in zip(done.tolist(), best, lengths, strict=True)}

    def move(self, source: Tensor, target: Tensor, num_rows: int) -> None:
        """Move all of the state."""
        for name, value in self._state.items():
            value = value.clone() if name in ("filled", "position") else value
            value[target] = value[source]
            self._state[name] = value[:num_rows]
        for to, row in zip(target.tolist(), source.tolist(), strict=True):
            self._lengths[to], self._trees[to] = self._lengths[row], self._trees[row]
        del self._lengths[num_rows:], self._trees[num_rows:]

    def _next_tokens(self, logits_RNV: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the tokens that are kept, and their ids.

        They are normalised before they are tempered and cut, and not again after it, as Hugging Face does.
        """
        rule = self.rule
        total_RN1 = logits_RNV.logsumexp(-1, keepdim=True)
        scores_RNV = logits_RNV
        self.forbid(scores_RNV, [tree for of_row in self._trees for tree in of_row], self._lengths)
        if rule.temperature != 1:
            scores_RNV, total_RN1 = scores_RNV / rule.temperature, total_RN1 / rule.temperature
        # Two tokens at least, so that a beam can go on where the end of text is the likeliest.
        scores_RNK, ids_RNK = candidates(scores_RNV, rule.top_k, rule.top_p, min_kept=2)
        return scores_RNK - total_RN1, ids_RNK

    def _keep_ended(self, scores_RM: Tensor, beams_RM: Tensor, tokens_RM: Tensor, ends_RM: Tensor) -> None:
        """The best of the texts that ended before and of those among the first drawn that end now."""
        s, num = self._state, self.rule.num_beams
        counts_RM = ends_RM & (torch.arange(2 * num, device=self.device) < num)
        means_RM = scores_RM / (s["length"][:, None] + 1)
        means_RM = means_RM + ~s["may_improve"][:, None] * _DEAD + ~counts_RM * _DEAD
        s["ended_scores"], chosen_RN = torch.cat([s["ended_scores"], means_RM], 1).topk(num)
        s["is_ended"] = torch.cat([s["is_ended"], counts_RM], 1).gather(1, chosen_RN)
        first_R1 = chosen_RN[:, :1]
        number_R1 = (first_R1 - num).clamp(min=0)
        rows_R = torch.arange(len(chosen_RN), device=self.device)
        text_RT = s["ids"][rows_R, beams_RM.gather(1, number_R1)[:, 0]]
        text_RT = text_RT.scatter(1, s["length"][:, None], tokens_RM.gather(1, number_R1))
        is_new_R1 = first_R1 >= num
        s["best"] = torch.where(is_new_R1, text_RT, s["best"])
        s["best_length"] = torch.where(is_new_R1[:, 0], s["length"] + 1, s["best_length"])

    def _prune(self) -> None:
        """Drop the columns that no beam of their row looks at."""
        s = self._state
        width = max(self.filled)
        is_live_RC = s["sees"][:, :, :width].any(1)
        counts = is_live_RC.sum(1)
        number = int(counts.max())
        if number > 0.8 * width:
            return
        start = int(is_live_RC.all(0).long().cumprod(0).sum())
        order_RC = (~is_live_RC).long().argsort(dim=1, stable=True)[:, :number]
        self.cache.select_columns(order_RC[:, start:], start)
        s["sees"] = s["sees"].gather(2, order_RC[:, None].expand(-1, self.rule.num_beams, -1))
        s["filled"], self.filled = counts, counts.tolist()


def _widen(tensor: Tensor, width: int) -> Tensor:
    """At least ``width`` columns, in steps, the new ones 0."""
    missing = width - tensor.shape[-1]
    return tensor if missing <= 0 else F.pad(tensor, (0, missing + _WIDTH))


def _append(old: Tensor, new: Tensor) -> Tensor:
    """Rows of both, as wide as the wider."""
    if old.ndim > 1:
        width = max(old.shape[-1], new.shape[-1])
        old, new = (F.pad(t, (0, width - t.shape[-1])) for t in (old, new))
    return torch.cat([old, new])

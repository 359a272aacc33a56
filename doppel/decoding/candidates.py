"""The tokens that may come next, out of a whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

_RANKED = 2048  # likeliest tokens in which a nucleus is looked for first: it is rarely larger
_SLACK = 8  # candidates beyond top_k, where scores that tie with the last of them may lie


def candidates(scores: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Cut scores to the ``top_k`` largest, ties included, and these to the nucleus of mass ``top_p``.

    The outcome is that of Hugging Face's ``TopKLogitsWarper`` followed by ``TopPLogitsWarper``, on the few columns that
    matter: what is kept of a vocabulary of 50,000 is softmaxed and drawn from at the price of 58.

    Args:
        scores: Logits or log-probabilities in float32, shape [..., vocabulary]; minus infinity for what may not come.
        top_k: Tokens kept; 0 keeps all.
        top_p: Mass of the nucleus; 1 keeps all.

    Returns:
        Scores, minus infinity where a token is cut off, and their token ids, both of shape [..., candidates].
    """
    size = scores.shape[-1]
    k = min(top_k, size) if top_k > 0 else size
    if k == size and top_p >= 1:
        return scores, torch.arange(size, device=scores.device).expand(scores.shape)
    if k == size:
        return _nucleus(scores, top_p)
    width = min(k + _SLACK, size)
    kept, ids = scores.topk(width)
    last = kept[..., k - 1 : k]
    # Half precision rounds many logits to one number, so more scores than the slack may tie with the last one kept.
    while width < size and bool(((kept[..., -1:] == last) & last.isfinite()).any()):
        width = min(2 * width, size)
        kept, ids = scores.topk(width)
    kept = kept.masked_fill(kept < last, -torch.inf)
    if top_p < 1:
        tail = kept.softmax(-1).flip(-1).cumsum(-1).flip(-1)
        cut = tail <= 1 - top_p
        cut[..., :1] = False
        kept = kept.masked_fill(cut, -torch.inf)
    return kept, ids


def _nucleus(scores: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The nucleus of all scores, looked for among the likeliest first: to rank a large vocabulary takes long."""
    norm, width = scores.logsumexp(-1, keepdim=True), min(_RANKED, scores.shape[-1])
    kept, ids = scores.topk(width)
    while width < scores.shape[-1] and bool(((kept - norm).exp().sum(-1) < top_p).any()):
        width = min(4 * width, scores.shape[-1])
        kept, ids = scores.topk(width)
    shares = (kept - norm).exp()
    return kept.masked_fill(shares.cumsum(-1) - shares >= top_p, -torch.inf), ids


def draw(scores: Tensor, points: Tensor | None = None) -> Tensor:
    """Draw one column of each row in proportion to exp(score), by the inverse of the distribution function.

    One random number a row: the exponential noise of ``torch.multinomial`` costs one for every column.

    Args:
        scores: Shape [rows, columns]; a row has a finite score.
        points: A number in [0, 1) for each row, [rows, 1], which is compared in float64; None draws them from the
            global generator.

    Returns:
        Columns of shape [rows, 1].
    """
    sums = scores.softmax(-1, dtype=None if points is None else torch.float64).cumsum(-1, dtype=torch.float64)
    if points is None:
        points = torch.rand(len(sums), 1, dtype=torch.float64, device=sums.device)
    return torch.searchsorted(sums, points * sums[:, -1:], right=True).clamp_(max=sums.shape[-1] - 1)

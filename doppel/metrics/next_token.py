"""What samples teach a small language model: how often it then expects the next token of human text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from doppel.models.encoders import TextFeaturizer
from doppel.models.judges import logits
from doppel.models.load import load_with_tokenizer
from doppel.models.texts import longest_text, padded, token_ids

#: As MAPLE trains its encoder (BERT-small as a decoder), but for the number of epochs.
_RATE, _WEIGHT_DECAY, _BATCH, _MAX_LENGTH = 3e-4, 0.01, 32, 512
#: Labels that no loss counts.
_IGNORED = -100


Keep = Callable[[Sequence[object], Callable[[], float | None]], float | None]


def next_token_metrics(
    samples: Sequence[str],
    reference: Sequence[str],
    model: str | Path,
    epochs: int,
    seed: int,
    keep: Keep | None = None,
) -> dict[str, float | None]:
    """Return the accuracy of the next token of one half of a reference, after samples and after its other half.

    Formal guarantees:
        A function of samples, of a public reference and of a public model.

    Args:
        samples: Texts to learn from.
        reference: Human texts that anybody may see.
        model: See :func:`next_token_accuracy`, likewise ``epochs`` and ``seed``.
        epochs: Passes.
        seed: Of the halves and of the order.
        keep: Returns each value by all that it depends on, in place of making it, where it was made before.

    Returns:
        ``next_token_accuracy`` after so many samples as half of the reference has turns,
        ``human_next_token_accuracy`` after that half, and ``next_token_accuracy_untrained`` of the model as it is.
    """
    rows = random.Random(seed).sample(list(reference), len(reference))
    human, judged = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    chosen = random.Random(seed + 1).sample(list(samples), min(len(human), len(samples)))  # a file may be sorted
    form = "" if keep is None else TextFeaturizer(model).form_of_batches()

    def after(taught: Sequence[str], epochs: int) -> float | None:
        make = partial(next_token_accuracy, taught, judged, model, epochs, seed)
        return make() if keep is None else keep([form, epochs, seed, taught, judged], make)

    return {
        "next_token_accuracy": after(chosen, epochs),
        "human_next_token_accuracy": after(human, epochs),
        "next_token_accuracy_untrained": after([], 0),
    }


def next_token_accuracy(
    taught: Sequence[str], judged: Sequence[str], model: str | Path, epochs: int, seed: int = 0
) -> float | None:
    """Train a causal language model on texts, and test how often its likeliest next token is that of other texts.

    Every token of a text counts, and its end, each predicted from those before it alone.

    Args:
        taught: Texts to learn from, such as samples.
        judged: Human texts that anybody may see.
        model: Folder or hub name of a small model of public text, which the training starts from. It is not changed.
        epochs: Passes over ``taught``; 0 tests the model as it is.
        seed: Of the order.

    Returns:
        A share; None where nothing can be learnt or tested.

    Raises:
        ModelError: The model cannot be loaded.
    """
    loaded, tokenizer = load_with_tokenizer(model)
    limit = longest_text(loaded, _MAX_LENGTH) - 1
    lesson, test = (_rows(tokenizer, texts, limit) for texts in (taught, judged))
    if (epochs and not lesson) or not test:
        return None
    optimizer = torch.optim.AdamW(loaded.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
    loaded.train()
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)  # of the order, and of dropout
        for _ in range(epochs):
            order = torch.randperm(len(lesson)).tolist()
            for ids_BT, labels_BT in _batches([lesson[row] for row in order]):
                loss = F.cross_entropy(
                    logits(loaded, ids_BT).flatten(0, 1).cpu(), labels_BT.flatten(), ignore_index=_IGNORED
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    loaded.eval()
    right = total = 0
    with torch.inference_mode():
        for ids_BT, labels_BT in _batches(sorted(test, key=len)):
            guess_N, label_N = logits(loaded, ids_BT).flatten(0, 1).cpu().argmax(1), labels_BT.flatten()
            counts_N = label_N != _IGNORED
            right += int((guess_N == label_N)[counts_N].sum())
            total += int(counts_N.sum())
    return right / total


def _rows(tokenizer: Any, texts: Sequence[str], limit: int) -> list[list[int]]:
    """Token ids of each text between a token that begins it and one that ends it."""
    eos = tokenizer.eos_token_id
    bos = eos if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return [[bos, *row, eos] for row in token_ids(tokenizer, [text for text in texts if text.strip()], limit)]


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids [B, T] and the token after each [B, T]; padding stands behind a text and counts nothing."""
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        yield padded([row[:-1] for row in batch])[0], padded([row[1:] for row in batch], _IGNORED)[0]

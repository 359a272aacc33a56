"""What redacted text, and private training, leave of a next-word model; and how near its weights come.

    python -m studies.redaction next-word --out docs/results/next-word.csv --weights RUNS/next_word

The sensitive set are turns of the domain Services (doctors, dentists, therapists, hairdressers) of Schema-Guided
Dialogue, the safe one those of Restaurants. For each seed rows are drawn. A ranker learns from some that are not
trained on; the others are redacted at each level, and an LSTM is trained on those of each set. Beside it stand LSTMs
trained with DP-SGD, on the text as it is and on redacted text, whose ε is that of a ledger of its own. Metrics (figures
5 and 6 of Gusain and Leith, 2024):

- `log_perplexity`: nats a word on held-out sensitive rows as they are, of the model of the sensitive set;
- `cka_encoder`, …: distance of the weights of both models, which begin as the same weights, by
  `studies.redaction.closeness`.

A seed fixes rows, first weights and order, never the noise or the Poisson samples of a private training. What the file
has already is passed over, so that an interrupted command goes on.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import math
import os
import random
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Trainer, seed_everything

from callbacks.differential_privacy import DifferentialPrivacy
from commands.quality.frame import COLUMNS, read_csv, write_csv
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.reading.examples import read_examples
from doppel.files import write_json_lines
from doppel.privacy.spec import PrivacyArguments
from studies.redaction.next_word_lstm import NextWordLSTM

#: Of the file, below --folder: which label is of which set.
FILE, SETS = "sgd/train.dataflow_dialogues.jsonl.zip", {"sensitive": "Services", "safe": "Restaurants"}
#: δ and C of Gusain and Leith (2024, appendix 2).
DELTA, CLIPPING = 8e-5, 1.5
#: Rows that the ranker learns from, that the rate follows, and that are tested on: of each set.
_RANKED, _VALIDATED, _TESTED = 1000, 400, 1000
#: Public utterances whose words are the vocabulary.
_PUBLIC = 20_000


def main(argv: Sequence[str] | None = None) -> None:
    """What redacted text and private training leave of a next-word model, and how near its weights come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("DOPPEL_DATA", ".")), help="of the data")
    parser.add_argument("--levels", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 4.0, 16.0], help="level 0 is that of ∞")
    parser.add_argument("--stacked", type=float, nargs="*", default=[0.3], help="levels of which DP-SGD learns too")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--num-rows", type=int, default=5000, help="that are trained on, of each set")
    parser.add_argument("--num-words", type=int, default=4000, help="of the public vocabulary")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--private-epochs", type=int, default=10)
    parser.add_argument("--private-batch-size", type=int, default=250)
    parser.add_argument("--private-rate", type=float, default=8.0)
    parser.add_argument("--weights", type=Path, help="folder for encoder and decoder of each model (.npz)")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found = read_csv(options.out) if options.out.is_file() else pd.DataFrame(columns=COLUMNS)
    for seed in options.seeds:
        known = set(found[found["seed"] == seed]["setting"])
        settings = [(f"p = {level:g}", level, math.inf) for level in options.levels]
        settings += [(f"DP-SGD, ε = {epsilon:g}", 0.0, epsilon) for epsilon in options.epsilons]
        settings += [
            (f"DP-SGD after p = {level:g}, ε = {epsilon:g}", level, epsilon)
            for level in options.stacked
            for epsilon in options.epsilons
        ]
        todo = [setting for setting in settings if setting[0] not in known]
        if not todo:
            continue
        parts = _parts(options.folder, seed, options.num_rows)
        ranker = _ranker(parts) if any(0 < level < 1 for _, level, _ in todo) else None
        for setting, level, epsilon in todo:
            start = time.process_time()
            measured = _measured(parts, ranker, level, epsilon, seed, options, setting)
            print(f"seed {seed}, {setting}: {measured}, {time.process_time() - start:.0f} CPU s", flush=True)
            row = {"system": "next_word", "data": "SGD", "num_samples": options.num_rows, "experiment": "next_word"}
            row |= {"setting": setting, "seed": seed}
            if math.isfinite(epsilon):
                row |= {"epsilon": epsilon, "delta": DELTA, "unit": "utterance"}
            rows = [{**row, "metric": name, "value": round(value, 4)} for name, value in measured.items()]
            new = pd.DataFrame(rows, columns=COLUMNS)
            found = pd.concat([found, new], ignore_index=True) if len(found) else new
            write_csv(found.astype({"seed": "Int64", "num_samples": "Int64"}), options.out)


def _parts(folder: Path, seed: int, num_rows: int) -> dict[str, dict[str, list[str]]]:
    """Texts of each set, for the ranker, for validation, test and training."""
    turns = read_examples(str(folder / FILE), "utterance", with_trees=False)
    parts = {}
    for name, label in SETS.items():
        texts = [turn.utterance for turn in turns if turn.label == label and turn.utterance.strip()]
        drawn = random.Random(seed).sample(texts, _RANKED + _VALIDATED + _TESTED + num_rows)
        ends = np.cumsum([_RANKED, _VALIDATED, _TESTED, num_rows]).tolist()
        kinds = ("ranker", "val", "test", "train")
        parts[name] = {kind: drawn[a:b] for kind, a, b in zip(kinds, [0, *ends], ends, strict=False)}
    return parts


def _ranker(parts: dict[str, dict[str, list[str]]]) -> Any:
    from doppel.redaction.rank import LogisticRanker

    return LogisticRanker.fit(parts["sensitive"]["ranker"], parts["safe"]["ranker"])


def _measured(
    parts: dict[str, dict[str, list[str]]],
    ranker: Any,
    level: float,
    epsilon: float,
    seed: int,
    options: argparse.Namespace,
    setting: str,
) -> dict[str, float]:
    """Train on both sets; the perplexity of the sensitive one, and how far apart both are."""
    from studies.redaction.closeness import cka, procrustes, pwcca

    models, measured = {}, {}
    for name, texts in parts.items():
        rows = [_hidden(text, ranker, level) for text in texts["train"]]
        with tempfile.TemporaryDirectory() as folder:
            for kind, own in (("train", rows), *((kind, texts[kind]) for kind in ("val", "test"))):
                write_json_lines(Path(folder) / f"{kind}.jsonl", ({"utterance": text} for text in own))
            model, loss = _trained(Path(folder), epsilon, seed, options)
        if name == "sensitive":
            measured["log_perplexity"] = loss
        models[name] = {part: getattr(model, part).weight.detach().numpy() for part in ("encoder", "decoder")}
        if options.weights is not None:
            options.weights.mkdir(parents=True, exist_ok=True)
            np.savez(options.weights / f"{setting.replace(' ', '')}-{name}-seed{seed}.npz", **models[name])
    for part in ("encoder", "decoder"):
        for distance in (cka, pwcca, procrustes):
            apart = distance(models["sensitive"][part], models["safe"][part])
            measured[f"{distance.__name__}_{part}"] = apart
    return measured


def _hidden(text: str, ranker: Any, level: float) -> str:
    if level == 0:
        return text
    from doppel.redaction.mask import MASK, Redactor

    return MASK if level == 1 else str(Redactor(ranker=ranker, level=level).redact(text).text)


def _public(source: Path, folder: Path) -> Path:
    """The first of the public utterances."""
    path = folder / "public.txt"
    with gzip.open(source / "public/utterances.txt.gz", "rt", encoding="utf-8") as lines:
        path.write_text("".join(islice(lines, _PUBLIC)), encoding="utf-8")
    return path


def _trained(folder: Path, epsilon: float, seed: int, options: argparse.Namespace) -> tuple[NextWordLSTM, float]:
    """A model, and its loss on the rows for the test."""
    is_private = math.isfinite(epsilon)
    seed_everything(seed, verbose=False)
    words = {"public_text": str(_public(options.folder, folder)), "num_words": options.num_words}
    rate: dict[str, Any] = {}
    if is_private:
        rate = {"optimizer": lambda params: torch.optim.SGD(params, lr=options.private_rate)}
    model = NextWordLSTM(**words, hidden_size=options.hidden_size, **rate)
    data = DialogueDataModule(
        train_path=str(folder / "train.jsonl"),
        val_path=str(folder / "val.jsonl"),
        test_path=str(folder / "test.jsonl"),
        unit="utterance",
        batch_size=options.private_batch_size if is_private else options.batch_size,
        sampling="poisson" if is_private else "shuffle",
        val_is_public=True,
        test_is_public=True,
    )
    epochs = options.private_epochs if is_private else options.epochs
    arguments = PrivacyArguments(
        target_epsilon=epsilon,
        delta=DELTA,
        max_grad_norm=CLIPPING,
        ledger_path=str(folder / "ledger.jsonl"),
        stage="fit",
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[DifferentialPrivacy(arguments)] if is_private else [],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    trainer.fit(model, data)
    (tested,) = trainer.test(model, data, verbose=False)
    return model, float(tested["test/loss"])

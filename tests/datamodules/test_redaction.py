"""What `redact` does to training rows: each by itself, nothing else changed, and no ranker of private rows."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from table_files import write_table

from datamodules.batches.encoded import encode_examples
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.redaction import Redaction
from datamodules.guards.selection import Selection
from datamodules.reading.example import Example
from datamodules.reading.files import content_digest
from datamodules.text_format import TextFormat
from datamodules.training_rows import TrainingRows
from doppel.errors import DataError, UserError
from doppel.privacy.ledger import Ledger
from doppel.redaction.mask import MASK
from lightning_modules.causal_lm import UtteranceLM
from tests.private_training import data_module, fit, privacy, sgd

NAMES = ("Ana", "Bo", "Cleo")


@pytest.fixture
def utterances(text_format: TextFormat) -> TextFormat:
    """Of utterances alone."""
    return replace(text_format, source=None, target="utterance")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Two public files, a private one whose long texts are all its own, and a list of words."""
    draw = random.Random(0)

    def said(place: str, number: int) -> str:
        return f"{draw.choice(['please', 'could you'])} book a {place} for {draw.choice(NAMES)} at {number} o'clock"

    rows = {
        name: [said(place, n) for n in range(30)] for name, place in {"sensitive": "doctor", "safe": "table"}.items()
    }
    rows["private"] = [
        f"I want the {draw.choice(['doctor', 'table'])} of {draw.choice(NAMES)} on day {n}" for n in range(40)
    ]
    found = {}
    for name, texts in rows.items():
        found[name] = str(tmp_path / f"{name}.jsonl")
        Path(found[name]).write_text("".join(json.dumps({"utterance": text}) + "\n" for text in texts))
    found["words"] = str(tmp_path / "words.txt")
    Path(found["words"]).write_text("Ana\tperson\nBo\n")
    return found


def redaction(files: dict[str, str], **more: Any) -> Redaction:
    ranked = {"level": 0.2, "sensitive": files["sensitive"], "safe": files["safe"]}
    return Redaction(**(ranked | {"words": files["words"], "patterns": ("number",)} | more))


def turns(path: str) -> list[Example]:
    lines = Path(path).read_text().splitlines()
    return [Example(json.loads(line)["utterance"], f'(Book "{n}")', f"u{n}", "label") for n, line in enumerate(lines)]


@pytest.mark.parametrize("pseudonyms", [False, True])
def test_a_row_is_redacted_by_itself(files: dict[str, str], pseudonyms: bool) -> None:
    """Whatever the other rows are, how many, and in whatever order; and it stays one row of its unit."""
    rule, rows = redaction(files, pseudonyms=pseudonyms), turns(files["private"])
    whole = Selection(redact=rule).apply(rows, "private", "user")
    assert [(turn.unit, turn.label) for turn in whole] == [(turn.unit, turn.label) for turn in rows]
    for place in (0, 7, 39):
        assert rule.apply([rows[place]]) == [whole[place]]
        without = Selection(redact=rule).apply(rows[:place] + rows[place + 1 :], "private", "user")
        assert without == whole[:place] + whole[place + 1 :]
    others = [Example("something else entirely", None, f"v{n}") for n in range(20)]
    assert Selection(redact=rule).apply([*others, *rows[::-1]], "private", "user")[20:] == whole[::-1]
    assert not any("doctor" in turn.utterance for turn in whole)
    if pseudonyms:  # drawn by chance, so one may be what it stands for
        assert [turn.parse for turn in whole] != [turn.parse for turn in rows]
    else:
        assert not any("Ana " in turn.utterance for turn in whole) and whole[7].parse == f'(Book "{MASK}")'


def test_what_is_kept_is_chosen_before_anything_is_hidden(files: dict[str, str]) -> None:
    rows = turns(files["private"])
    kept = Selection(keep_share=0.5).apply(rows, "private", "utterance")
    rule = redaction(files)
    assert Selection(keep_share=0.5, redact=rule).apply(rows, "private", "utterance") == rule.apply(kept)


def test_all_is_hidden_before_it_is_tokenised(files: dict[str, str], utterances: TextFormat) -> None:
    selection = Selection(redact=Redaction(1.0, files["sensitive"], files["safe"]))
    encoded = encode_examples(TrainingRows(files["private"], "utterance", selection=selection).read(), utterances)
    assert len(encoded) == 40 and {tuple(encoded.row(n)) for n in range(40)} == {
        tuple(utterances.encode(Example(MASK, None, "")).input_ids)
    }


def test_a_ranker_of_private_rows_is_refused(files: dict[str, str], utterances: TextFormat, tmp_path: Path) -> None:
    copied = tmp_path / "copied.txt"
    copied.write_text("\n".join(turn.utterance.upper() for turn in turns(files["private"])))
    for sensitive in (files["private"], str(copied)):
        data = DialogueDataModule(files["private"], unit="utterance", redact=redaction(files, sensitive=sensitive))
        data.text_format = utterances
        with pytest.raises(UserError, match="redact.sensitive is .* is to be public"):
            data.setup("fit")
    held = DialogueDataModule(files["words"], val_path=files["private"], redact=redaction(files, safe=files["private"]))
    held.text_format = utterances
    with pytest.raises(UserError, match=r"redact.safe is .*private\.jsonl"):
        held.setup("fit")
    public = DialogueDataModule(files["private"], redact=redaction(files, safe=files["private"]), is_public=True)
    public.text_format = utterances
    public.setup("fit")  # nobody is protected


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "hides nothing"),
        ({"level": 0.5}, "two public files"),
        ({"level": 0.5, "sensitive": "a.txt"}, "two public files"),
        ({"words": "a.txt", "sensitive": "a.txt", "safe": "b.txt"}, "two public files"),
        ({"level": 2, "sensitive": "a.txt", "safe": "b.txt"}, "between 0 and 1"),
        ({"epsilon": 1}, "redact is"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        Redaction.from_config(values)


def test_settings_are_read_as_they_were_written(files: dict[str, str]) -> None:
    rule = redaction(files)
    assert Selection.from_config({"redact": rule.as_dict()}) == Selection(redact=rule)
    assert Selection.from_config({"redact": rule}).key == Selection(redact=rule).key
    assert Selection.from_config({}).key == "" and "level" not in Redaction(words="a.txt").as_dict()


def test_the_fingerprint_tells_rules_and_the_content_of_their_files_apart(files: dict[str, str]) -> None:
    def fingerprint(rule: Redaction | None) -> str:
        return content_digest(files["private"], Selection(redact=rule))

    found = [fingerprint(None), fingerprint(redaction(files)), fingerprint(redaction(files, level=0.3))]
    Path(files["words"]).write_text("Ana\nBo\nCleopatra\n")
    found.append(fingerprint(redaction(files)))
    folder = Path(files["private"]).parent / "sensitive"
    for texts in (["a"], ["b"]):
        write_table(folder, "shards", [{"text": text} for text in texts * 2])
        found.append(fingerprint(redaction(files, sensitive=str(folder))))
    assert len(set(found)) == 6


def test_the_ledger_is_the_same_but_for_the_fingerprint_of_the_data(
    files: dict[str, str], tiny_model: str, tmp_path: Path
) -> None:
    """No ε is added and none is saved: N, q, σ, C, δ, steps and what is spent."""
    found = []
    for name, rule in {"with": redaction(files), "without": None}.items():
        torch.manual_seed(0)
        folder = tmp_path / name
        data = data_module(files["private"], batch_size=10, sampling_seed=None, redact=rule)
        fit(folder, UtteranceLM(base_model=tiny_model, optimizer=sgd), data, [privacy(folder, seed=None)], max_epochs=1)
        ledger = Ledger(folder / "ledger.jsonl")
        summary = ledger.summary()
        (mechanism,) = summary["mechanisms"]
        found.append((mechanism.pop("data_fingerprint"), mechanism, summary["scopes"]))
    assert found[0][0] != found[1][0]
    assert found[0][1:] == found[1][1:]
    assert 7 < found[0][2]["default"]["epsilon"] <= 8

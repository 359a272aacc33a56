"""What the public reference says: how long samples may get, and which names of its trees no slot is for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from callbacks.sample_metrics import MANY_CUT_OFF, cut_off_warning
from commands.data.reference import USUAL_LENGTH, foreign, lossy, unslotted
from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from datamodules.reading.columns import ReferenceColumns
from datamodules.reading.example import Example
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.models.load import load_tokenizer


def limit(tmp_path: Path, system: str = "one_stage", **changes: Any) -> int:
    own = {"data.train_path": "private.csv", "systems": [system], **changes}
    steps = steps_of(load(shipped("own-data-small"), own), tmp_path / "run")
    (config,) = (step.config for step in steps if step.kind == "predict" and step.name != "two_stage-sample_parse_tree")
    return int((config or {})["model"]["init_args"]["sampling"]["max_new_tokens"])


def reference(tmp_path: Path, *texts: str) -> str:
    path = tmp_path / f"{len(texts)}-{len(texts[0])}.jsonl"
    path.write_text("".join(json.dumps({"utterance": text}) + "\n" for text in texts))
    return str(path)


def test_without_a_reference_and_with_short_texts_samples_have_the_usual_length(tmp_path: Path) -> None:
    assert limit(tmp_path) == USUAL_LENGTH
    assert limit(tmp_path, reference=reference(tmp_path, "call me")) == USUAL_LENGTH


@pytest.mark.parametrize("system", ["one_stage", "two_stage"])
def test_nearly_all_texts_of_the_reference_would_fit(tmp_path: Path, system: str) -> None:
    texts = ["the food was good " * n for n in range(1, 21)]
    longest = len(load_tokenizer("models/base")(" " + texts[-1], add_special_tokens=False)["input_ids"])
    assert longest > USUAL_LENGTH
    found = limit(tmp_path, system, reference=reference(tmp_path, *texts))
    assert longest < found <= 1.5 * longest


def test_one_text_of_a_thousand_does_not_decide(tmp_path: Path) -> None:
    assert limit(tmp_path, reference=reference(tmp_path, "word " * 200, *["call me"] * 999)) == USUAL_LENGTH


def test_no_sample_is_longer_than_the_model_and_a_given_length_stays(tmp_path: Path) -> None:
    given = reference(tmp_path, *["so many words " * 300] * 5)
    assert limit(tmp_path, reference=given) == 256
    assert limit(tmp_path, reference=given, **{"sampling.max_new_tokens": 20}) == 20


def test_a_language_that_the_base_spells_is_told(tmp_path: Path) -> None:
    """German, Japanese and Arabic; neither English, nor anything without a reference."""
    said = {
        "en": ["Move my meeting with Ana to noon", "what's the weather in Boston tomorrow"],
        "de": ["Bitte verschiebe meinen Termin mit Anna auf morgen Nachmittag", "Wie wird das Wetter in München"],
        "ja": ["明日の午後三時に田中さんとの会議を入れてください", "週末の東京の天気はどうですか"],
        "ar": ["انقل اجتماعي مع محمد إلى الغد بعد الظهر"],
    }
    for language, texts in said.items():
        path = reference(tmp_path, *texts)
        told = foreign(path, ReferenceColumns(), "models/base")
        assert (told is None) == (language == "en")
        assert told is None or ("tokens a word for models/base" in told and "model.base_model=" in told)
        assert told is None or "topics" not in told
        told = foreign(path, ReferenceColumns(), "models/base", ["topics.encoder"])
        assert (told is None) == (language == "en") and (told is None or "Take topics.encoder=" in told)
    assert foreign(None, ReferenceColumns(), "models/base") is None


def test_characters_that_a_vocabulary_loses_are_told_by_their_share(tmp_path: Path) -> None:
    path = reference(tmp_path, "book a ride", "Grüße an José", "book")
    assert lossy(path, ReferenceColumns(), "models/base") is None and lossy(None, ReferenceColumns(), "") is None
    tokens = ["[UNK]", *"bokaridesn", *(f"##{c}" for c in "okideaegsn")]
    letters = WordPiece({token: place for place, token in enumerate(dict.fromkeys(tokens))}, unk_token="[UNK]")
    tokenizer = Tokenizer(letters)
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    told = lossy(path, ReferenceColumns(), str(tmp_path))
    assert told is not None and "cannot write 37.5% of the reference's characters" in told and "ü" in told


def module(target: str, wanted: int | None, positions: int | None) -> Any:
    return SimpleNamespace(
        text_format=SimpleNamespace(target=target),
        sampling=SimpleNamespace(max_new_tokens=wanted),
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=positions)),
    )


def test_many_samples_that_were_cut_off_are_told_with_a_length_to_try() -> None:
    few, many = ({"synthetic/finished": 1 - share, "synthetic/num_drawn": 100} for share in (MANY_CUT_OFF, 0.6))
    assert cut_off_warning(few, module("utterance", 48, 256)) is None
    told = cut_off_warning(many, module("utterance", 48, 256))
    assert told is not None and told.startswith("60%") and "sampling.max_new_tokens=96" in told
    assert "=256" in str(cut_off_warning(many, module("utterance", 200, 256)))
    assert "stages.parse_tree.sampling.max_new_tokens=400" in str(cut_off_warning(many, module("parse", 200, None)))
    at_the_end = str(cut_off_warning(many, module("utterance", 256, 256)))
    assert "base_model" in at_the_end and "=" not in at_the_end


def test_names_without_a_kind_are_told_and_numbers_and_constants_are_not() -> None:
    """With their share and examples; nothing where the table has all, or little is left."""
    known = Example("lunch at 2", '(& (Event.subject_? (?= "Lunch")) (x "2") (Path.apply "output"))', "u")
    unknown = Example("fly Delta", '(Flight.airline_? (?= "Delta"))', "u")
    table = slot_table(SHIPPED)
    assert unslotted([known, Example("hello", None, "u")], table) == []
    assert unslotted([known] * 30 + [unknown], table) == []
    (told,) = unslotted([known, unknown], table)
    assert told.startswith("50% of the quoted strings") and '"delta"' in told


def test_names_that_are_slots_of_the_tree_alone_are_counted() -> None:
    """Another form of a name is one, another spelling is not, nor what is said as a part of a longer name."""
    tree = '(& (Event.subject_? (?= "Lunch")) (PersonName.apply "José"))'
    turns = [Example("Lunch with JOSE\u0301", tree, "u"), Example("lunch with Joses boss", tree, "u")]
    turns.append(Example("call Ana Lee", '(& (PersonName.apply "Ana") (PersonName.apply "Ana Lee"))', "u"))
    (told,) = unslotted(turns, slot_table(SHIPPED))
    assert told.startswith("1 of 6 names in the reference's trees") and '"José"' in told

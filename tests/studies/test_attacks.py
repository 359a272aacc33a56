"""The benchmark of redaction runs end to end on a few rows, goes on with what is there, and adds a measure later."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from commands.quality.frame import read_csv
from studies.redaction import attacks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(0)
    (tmp_path / "yelp").mkdir()
    with (tmp_path / "yelp" / "dev.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label1", "label2"])
        for n in range(120):
            of, word = ("Restaurants", "food") if n % 2 else ("Health & Medical", "doctor")
            writer.writerow(
                [f"the {word} was {draw.choice(['good', 'bad'])} today, no {n}", f"Business Category: {of}", "x"]
            )
    return tmp_path


@pytest.mark.slow
def test_what_is_measured_is_written_once(folder: Path, capsys: pytest.CaptureFixture) -> None:
    out = folder / "redaction.csv"
    words = [
        "--folder",
        str(folder),
        "--data",
        "Yelp",
        "--num-rows",
        "50",
        "--seeds",
        "1",
        "--mechanisms",
        "--out",
        str(out),
    ]
    attacked = [*words, "--rankers", "logistic", "random", "--measures", "attack"]
    attacks.main([*attacked, "--levels", "0", "0.2"])
    first = read_csv(out)
    assert len(first) == 2 * 2 * 2 and set(first["num_samples"]) == {80}
    accuracy = first[first["metric"] == "attack_accuracy"].set_index("setting")["value"]
    assert accuracy["logistic, p = 0"] == 1 > accuracy["logistic, p = 0.2"]
    capsys.readouterr()
    attacks.main([*attacked, "--levels", "0.2", "1"])
    told = capsys.readouterr().out
    assert "p = 0.2" not in told and "p = 1" in told
    both = read_csv(out)
    assert len(both) == 12 and both.head(8).equals(first)
    assert set(both[both["setting"].str.endswith("p = 1") & both["metric"].eq("attack_accuracy")]["value"]) == {0.5}
    attacks.main([*words, "--rankers", "logistic", "--measures", "guesses", "--levels", "0", "0.2", "1"])
    assert set(read_csv(out).tail(2)["metric"]) == {"masks_guessed_first", "masks_guessed_in_ten"}
    assert len(read_csv(out)) == 14

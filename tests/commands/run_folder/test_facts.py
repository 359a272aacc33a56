"""What a setting is stands on its field: whether it names a file, is a text or a number, and what it binds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.run.experiment.experiment import load, read_values
from commands.run.experiment.settings import FACTS, Experiment
from commands.run_folder.sections import SECTIONS
from doppel.settings.facts import LEVELS, Fact
from doppel.settings.yaml_files import dump


def keys_of(fact: Fact, place: str = "", depth: int = 4) -> Iterator[tuple[str, Fact]]:
    """Every documented key below, by dotted name."""
    for name, inner in fact.keys.items() if depth else ():
        yield f"{place}{name}", inner
        yield from keys_of(inner, f"{place}{name}.", depth - 1)


def written(path: Path, **fields: object) -> Path:
    path.write_text(dump(fields))
    return path


def test_every_field_of_an_experiment_says_what_it_binds() -> None:
    assert FACTS.keys.keys() == Experiment.__dataclass_fields__.keys()
    assert {fact.binds for _, fact in keys_of(FACTS)} == set(LEVELS)
    assert all(FACTS.keys[section].keys == fact.keys for section, fact in SECTIONS.items())
    assert FACTS.below("stages.parse_tree.sampling.top_p").binds == "samples"
    assert FACTS.below("variants.words.data.train_path").path  # a system may be called as a field is
    assert FACTS.below("at_epsilon.3.trainer.logger").binds == "nothing"


@pytest.mark.parametrize("key", [key for key, fact in keys_of(FACTS) if fact.path])
def test_a_file_beside_the_caller_is_meant_wherever_one_is_asked_for(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commands.run_folder.places import absolute

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").touch()
    (tmp_path / "minilm").mkdir()
    *above, name = key.split(".")
    fact = FACTS.below(key)
    found = absolute({name: "mine.csv"}, FACTS.below(".".join(above)) if above else FACTS)
    assert found == {name: str(tmp_path / "mine.csv")} and absolute("nowhere.csv", fact) == "nowhere.csv"
    assert absolute(["mine.csv"], fact) == [str(tmp_path / "mine.csv")]
    for word in fact.words:  # which stand for no file, whatever lies there
        (tmp_path / word).mkdir(exist_ok=True)
        assert absolute(word, fact) == word


def test_a_label_called_as_a_folder_is_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`supported: [Music]` where a folder Music lies: no page would count a request for music as supported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Music").mkdir()
    (tmp_path / "Weather").touch()
    (tmp_path / "api.csv").touch()
    path = tmp_path / "mine.yaml"
    for given in (["Music"], ["Music", "Weather"]):
        assert load(written(path, supported=given)).supported == given
    assert load(written(path, supported="api.csv")).supported == str(tmp_path / "api.csv")
    assert load(written(path, supported=["api.csv"])).supported == [str(tmp_path / "api.csv")]
    assert load(written(path, names={"Music": "Weather"})).names == {"Music": "Weather"}


@pytest.mark.parametrize("key", [key for key, fact in keys_of(FACTS) if fact.text])
def test_what_is_text_is_read_as_it_was_written(key: str) -> None:
    for text in ("12", "yes", "2024-01-01", "1e3", "0x1F"):
        assert read_values([f"{key}={text}"]) == {key: text}
        assert read_values([f"{key}=[{text}]"]) == {key: [text]}
    assert read_values([f"{key}=null"]) == {key: None}


def test_numbers_are_numbers_also_below_names_of_stages(tmp_path: Path) -> None:
    given = load(
        written(tmp_path / "m.yaml", data={"batch_size": "64"}, stages={"labels": {"privacy": {"delta": "1e-6"}}})
    )
    assert given.data["batch_size"] == 64 and given.stages["labels"]["privacy"]["delta"] == 1e-6
    assert load(written(tmp_path / "m.yaml", epochs={"labels": 2})).epochs == {"labels": 2}


def test_fields_of_one_epsilon_hold_there_whoever_gives_them(tmp_path: Path) -> None:
    path = written(tmp_path / "m.yaml", at_epsilon={3: {"effort": 2, "num_samples": 5}})
    assert load(path, {"epsilon": 3}).effort == 2
    given = load(path, {"epsilon": 3, "at_epsilon.3.effort": 4})
    assert (given.effort, given.num_samples, given.at_epsilon) == (4, 5, {})
    assert load(path, {"at_epsilon.3.effort": 4}).effort == 1

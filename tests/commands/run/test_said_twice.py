"""What a user says twice, nowhere, or at another place than where it is looked for: refused by name, or understood."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cli
from commands.report.names import read_names
from commands.run.experiment.experiment import load, read_grid, shipped
from doppel.console.command import call
from doppel.errors import UserError

QUICKSTART = str(shipped("quickstart"))
TWICE = "privacy: {delta: 1.0e-7}\nseed_everything: 1\nprivacy: {accountant: rdp}\n"


def test_a_key_that_stands_twice_is_refused_by_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML's readers drop the first one without a word: here the smaller δ."""
    own, config, names = tmp_path / "own.yaml", tmp_path / "fit.yaml", tmp_path / "names.yaml"
    own.write_text("base: quickstart\n" + TWICE)
    config.write_text(TWICE)
    names.write_text("Weather: the weather\nplumbing: [a]\nWeather: rain\n")
    with pytest.raises(UserError, match=r"own\.yaml:4: .*'privacy' stands here a second time"):
        load(own)
    with pytest.raises(UserError, match=r"names\.yaml:3: .*'Weather' stands here a second time"):
        read_names(str(names))
    assert cli.main(["fit", f"--config={config}", "--print_config"]) == 2
    assert f"{config}:3: " in capsys.readouterr().err
    own.write_text(
        "base: quickstart\nstages: {one_stage: {data: {limit_train_units: 9}, model: {}}, labels: {data: {}}}\n"
    )
    assert load(own).stages["one_stage"]["data"] == {"limit_train_units": 9}, "a key may stand below several others"


@pytest.mark.parametrize("section", ["stages: {one_stage: }", "variants: {small: }", "stages: {one_stage: 3}"])
def test_an_empty_section_is_an_error(section: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"base: quickstart\n{section}\n")
    with pytest.raises(UserError, match=r"own\.yaml: (one_stage|small) is (empty|3): give it sections"):
        load(tmp_path / "own.yaml")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--grid", "epsilon="], "epsilon has no value"),
        (["--grid", "epsilon=3,3.0"], "epsilon is 3.0 twice"),
        (["--grid", "epsilon=3", "seed=1", "epsilon=8"], "epsilon is given twice"),
        (["--set", "num_samples=3", "num_samples=4"], "num_samples is given twice"),
        (["--set", "num_samples=3", "--num_samples=4"], "num_samples is given twice"),
        (["--set", "epsilon=3", "--epsilon=8"], "by --set epsilon=3 and by --epsilon 8"),
        (["--epsilon=3", "--grid", "epsilon=8,16"], "epsilon is given twice, by --epsilon 3 and by --grid epsilon=8"),
        (["--set", "seed=3", "--grid", "seed=8,16"], "seed is given twice, by --set seed=3 and by --grid seed=8"),
        (["--epsilon=3", "--epsilon", "8"], "--epsilon is given twice"),
        (["--set", "seed=3", "--seed=4"], "by --set seed=3 and by --seed 4"),
        (["--set", "systems=topics", "--systems", "one_stage"], "by --set systems=topics and by --systems one_stage"),
        (["--set", "data.columns.text=a", "data.columns={text: b}"], "by data.columns.text and by data.columns"),
        (["--privacy.delta=1e-6", "--set", "privacy.init_args.delta=1e-7"], "privacy.delta is given twice"),
        (["--slurm", "nodes=2", "--nodes=3"], "nodes is given twice"),
        (["--systems", "one_stage", "one_stage"], "systems has one_stage twice"),
    ],
)
def test_one_name_is_given_once(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later value would win in silence, a second run of equal settings would spend ε again, and no value run none."""
    assert cli.main(["run", QUICKSTART, str(tmp_path / "run"), "--dry-run", *words]) in (1, 2)
    heard = capsys.readouterr()
    assert told in heard.err + heard.out and "sbatch" not in heard.out
    assert read_grid(["epsilon=3,inf"]) == [{"epsilon": 3}, {"epsilon": "inf"}]


@pytest.mark.slow
def test_a_field_of_an_experiment_is_an_option_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", QUICKSTART, str(tmp_path / "run"), "--check", "--systems", "one_stage"]
    assert cli.main([*run, "--data.batch_size=31", "--set", "seed=1", "--epochs.one_stage", "2"]) == 0
    assert "B 31, " in capsys.readouterr().out
    for words, told in (
        (["--num-samples"], "--num-samples has no value"),
        (["--num_samples", "--verbose"], "--num_samples has no value"),
        (["--dat.batch_size=3"], "there is no option 'dat.batch_size'"),
    ):
        assert cli.main([*run, *words]) == 2
        assert told in capsys.readouterr().err
    seen: list[object] = []

    def plain(name: str, *, num: int = 1) -> None:
        """Take a name."""
        seen.append((name, num))

    assert call(plain, ["a", "--num=2"], "cli.py plain") == 0 and seen == [("a", 2)]


def test_a_shipped_experiment_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path("configs/experiments/quickstart.yaml")) == load(Path(QUICKSTART))
    with pytest.raises(UserError, match=f"no experiment configs/mine.yaml: .*{QUICKSTART}"):
        load(Path("configs/mine.yaml"))
    (tmp_path / "configs" / "experiments").mkdir(parents=True)
    shutil.copy(QUICKSTART, tmp_path / "configs/experiments/quickstart.yaml")
    with (tmp_path / "configs/experiments/quickstart.yaml").open("a") as own:
        own.write("seed: 77\n")
    assert load(Path("configs/experiments/quickstart.yaml")).seed == 77, "the caller's own comes first"

"""`metadata`: refused before anything is drawn, paid for once, gone on with, and one budget with a training."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

import cli
from commands.run_folder import ownership
from doppel.console.ledger import FILE_NAME
from doppel.privacy.accounting import Mechanism, compute_epsilon, mu_of
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan
from doppel.tables.mixture import Mixture
from tests.killed import Killed, kill_at

SCHEMA = "domain: [music, banks, alarm]\nstars: [1, 2, 3]\nwords: {bins: [5, 10]}\n"


@pytest.fixture(autouse=True)
def own_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """300 rows of 100 users; the stars follow the domain."""
    generator = np.random.default_rng(0)
    domains, path = ["music", "banks", "alarm", "secretvalue"], tmp_path / "private.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "domain", "stars", "words"])
        for number in range(300):
            kind = int(generator.integers(0, 4))
            writer.writerow([f"u{number % 100}", domains[kind], kind, int(generator.integers(1, 20))])
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    return path


def call(table: Path, *more: str, out: str = "out/rows.csv", schema: bool = True) -> int:
    folder = table.parent
    words = [str(table), "--out", str(folder / out), "--num-rows", "200", "--epsilon", "1", "--delta", "1e-5"]
    given = ["--schema", str(folder / "schema.yaml")] if schema else []
    unit = [] if "--unit" in more else ["--unit", "utterance"]
    return cli.main(["metadata", *words, *given, *unit, "--method", "independent", *more])


def spent(path: Path) -> int:
    return path.read_bytes().count(b'"type": "spend"') if path.exists() else 0


def card(folder: Path, name: str = "rows.csv") -> dict[str, Any]:
    return json.loads((folder / f"{name}.card.json").read_text())


def test_rows_have_public_values_and_a_card_that_says_what_holds(table: Path, capsys: pytest.CaptureFixture) -> None:
    assert call(table, "--method", "aim") == 0
    folder = table.parent / "out"
    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200 and list(rows[0]) == ["domain", "stars", "words"]
    assert {row["words"] for row in rows} <= {"under 5", "5 to under 10", "10 or more", "other"}
    told = card(folder)
    assert told["private"] and (told["method"], told["unit"], told["target_epsilon"]) == ("aim", "utterance", 1.0)
    assert told["noise_multiplier"] == pytest.approx(1 / mu_of(1, 1e-5)) and told["num_units"] == 300
    assert told["sha256"] == hashlib.sha256((folder / "rows.csv").read_bytes()).hexdigest()
    assert told["scope_epsilon"] == pytest.approx(1.0, rel=1e-3) and told["scope_epsilon"] <= 1.0
    assert "that the values of the columns (schema.yaml) are public" in told["not_checked"]
    left = "".join(path.read_text() for path in folder.iterdir())
    assert "secretvalue" not in left + capsys.readouterr().out
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--schema", "none.yaml"], "no file none.yaml"),
        (["--columns", "color"], "column 'color' is not in the schema"),
        (["--epsilon", "0"], "epsilon"),
        (["--delta", "2"], "delta"),
        (["--unit", "user"], "no row has a column 'unit'"),
        (["--unit-column", "user"], "each row would be protected by itself"),
        (["--out", "rows.txt"], "give such a name"),
        (["--out", "{table}/rows.csv"], "private.csv: cannot be written to"),
    ],
)
def test_a_start_that_fails_spends_nothing(
    table: Path, more: list[str], why: str, capsys: pytest.CaptureFixture
) -> None:
    assert call(table, *(word.format(table=table) for word in more)) == 2
    assert why in capsys.readouterr().err
    assert not spent(table.parent / "out" / FILE_NAME)


def test_the_tables_own_values_are_refused_unless_they_are_declared_public(
    table: Path, capsys: pytest.CaptureFixture
) -> None:
    assert call(table, schema=False) == 2
    assert "--values-are-public" in capsys.readouterr().err
    assert not (table.parent / "out").exists()
    assert call(table, "--values-are-public", "--columns", "domain", "stars", schema=False) == 0
    told = card(table.parent / "out")
    assert told["columns"]["domain"] == ["alarm", "banks", "music", "secretvalue", "other"]
    assert "that the values of the columns (of the table) are public" in told["not_checked"]


def test_values_may_be_made_of_the_request_itself(table: Path, capsys: pytest.CaptureFixture) -> None:
    rows = table.with_name("private.jsonl")
    lines = [{"text": "one more" * (n % 2) + " word", "kind": "music", "parse": "(Yield (Ask))"} for n in range(90)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    schema = table.with_name("schema.yaml")
    schema.write_text("length: {made: words, bins: [2]}\nact: {made: function, values: [Ask]}\n")
    assert call(rows, "--epsilon", "8") == 0
    drawn = list(csv.DictReader((table.parent / "out" / "rows.csv").open()))
    assert {row["act"] for row in drawn} >= {"Ask"} and {row["length"] for row in drawn} >= {"under 2", "2 or more"}
    assert sum(row["act"] == "Ask" for row in drawn) > 150
    schema.write_text("area: {made: label, values: [Ask]}\n")
    assert call(rows, out="out/more.csv") == 2 and "no row has a column 'label'" in capsys.readouterr().err
    rows.write_text(rows.read_text().replace('"text"', '"message"'))
    schema.write_text("length: {made: words, bins: [2]}\n")
    assert call(rows, out="out/more.csv") == 2
    assert "(made: words), so call that column 'utterance' or 'text'" in capsys.readouterr().err


def test_rows_of_one_person_are_no_units_in_silence(table: Path, capsys: pytest.CaptureFixture) -> None:
    folder = table.parent
    words = [str(table), "--out", str(folder / "out/rows.csv"), "--num-rows", "9", "--epsilon", "1"]
    schema = ["--schema", str(folder / "schema.yaml"), "--method", "independent"]
    assert cli.main(["metadata", *words, *schema]) == 2
    told = capsys.readouterr().err
    assert "private.csv:102: another row of whom 'user' names in line 2" in told and "--unit-column user" in told
    assert cli.main(["metadata", *words, *schema, "--unit", "user", "--unit-column", "user"]) == 0
    assert card(folder / "out")["num_units"] == 100 and card(folder / "out")["unit"] == "user"


def test_a_cell_that_is_no_value_is_named_by_line_and_column(table: Path, capsys: pytest.CaptureFixture) -> None:
    rows = table.with_name("private.jsonl")
    rows.write_text('{"domain": "music", "stars": 1, "words": 2}\n{"domain": {"my": "secret"}, "stars": 1}\n')
    assert call(rows) == 2
    told = capsys.readouterr().err
    assert "private.jsonl:2, column 'domain': is no single value" in told and "secret" not in told
    rows.write_text('{"domain": "music", "stars": 1}\n')
    assert call(rows) == 2
    assert "no row has a column 'words'" in capsys.readouterr().err


def test_the_same_command_again_draws_other_rows_at_no_further_epsilon(table: Path) -> None:
    folder = table.parent / "out"
    assert call(table) == 0
    first, ledger = (folder / "rows.csv").read_text(), (folder / FILE_NAME).read_text()
    released = (folder / "rows.csv.releases.jsonl").read_text()
    assert call(table) == 0
    assert (folder / "rows.csv").read_text() == first
    assert call(table, "--num-rows", "77", "--seed", "2") == 0
    assert len((folder / "rows.csv").read_text().splitlines()) == 78
    new = (folder / FILE_NAME).read_text().removeprefix(ledger)  # other rows are another file
    assert [json.loads(line)["type"] for line in new.splitlines()] == ["release"]
    assert (folder / "rows.csv.releases.jsonl").read_text() == released


@pytest.mark.parametrize(("method", "public"), [("aim", "schema"), ("independent", "values")])
def test_a_finished_table_is_not_opened_again_whatever_the_seed(
    table: Path, method: str, public: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder, fit = table.parent / "out", Mixture.fit
    monkeypatch.setattr(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, steps=3))
    more = ["--method", method] + (["--values-are-public"] if public == "values" else [])
    assert call(table, *more, schema=public == "schema") == 0
    table.unlink()
    before = (folder / "rows.csv.releases.jsonl").read_text()
    assert call(table, *more, "--seed", "2", schema=public == "schema") == 0
    assert cli.main(["verify", str(folder / "rows.csv")]) == 0
    assert (folder / "rows.csv.releases.jsonl").read_text() == before and spent(folder / FILE_NAME) == 1
    squares = [json.loads(line).get("mu_squared", 0.0) for line in before.splitlines()[1:]]
    assert sum(squares) == pytest.approx(mu_of(1, 1e-5) ** 2, rel=1e-9)
    capsys.readouterr()
    for other in (["--epsilon", "2"], ["--columns", "domain"]):
        assert call(table, *more, *other, schema=public == "schema") == 2
        assert "of another command" in capsys.readouterr().err
    assert call(table, *more, "--scope", "another", schema=public == "schema") == 2
    assert "no file" in capsys.readouterr().err, "another scope would have to read the table"


@pytest.mark.parametrize("way", ["a row less", "another file", "moved"])
def test_another_table_is_refused_by_name_and_costs_nothing(
    way: str, table: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its rows would not be those that are asked for; where it lies does not matter, nor is any row read."""
    folder, lines = table.parent / "out", table.read_bytes().splitlines(keepends=True)
    assert call(table) == 0
    before = (folder / "rows.csv").read_text()
    other = table if way == "a row less" else table.with_name("other.csv")
    other.write_bytes(b"".join(lines if way == "moved" else lines[:-1]))
    assert call(other, "--seed", "2") == (0 if way == "moved" else 2)
    told = capsys.readouterr().err
    if way != "moved":
        assert f"{other} is not the table whose releases" in told and "give another --out" in told
        assert not any(line.decode().strip() in told for line in lines)
        assert (folder / "rows.csv").read_text() == before
    assert spent(folder / FILE_NAME) == 1


def test_spellings_of_a_name_are_one_unit_or_asked_about(table: Path, capsys: pytest.CaptureFixture) -> None:
    table.write_text(table.read_text().replace("\nu7,", "\nU7,", 1))
    more = ["--unit", "user", "--unit-column", "user"]
    assert call(table, *more) == 2
    told = capsys.readouterr().err
    assert "'user' is that of line 9 in another spelling" in told and "--unit-names folded" in told
    assert not spent(table.parent / "out" / FILE_NAME)
    for rule, number in (("folded", 100), ("exact", 101)):
        assert call(table, *more, "--unit-names", rule, out=f"{rule}/rows.csv") == 0
        assert card(table.parent / rule)["num_units"] == number
    assert call(table, *more, "--unit-names", "folded", out="exact/rows.csv") == 2
    assert "of another command, which differs in unit_names" in capsys.readouterr().err


def test_a_second_release_adds_up_and_one_beyond_the_budget_is_refused_before_anything_is_drawn(
    table: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = table.parent / "out"
    assert call(table, "--target-epsilon", "1.6") == 0
    assert call(table, "--target-epsilon", "1.6", out="out/more.csv") == 0
    both = compute_epsilon([Mechanism(1.0, 1 / mu_of(1, 1e-5), 2)], 1e-5)
    assert card(folder, "more.csv")["scope_epsilon"] == pytest.approx(both) and 1.4 < both < 1.6
    assert call(table, "--target-epsilon", "1.6", out="out/third.csv") == 2
    assert "past its target 1.6" in (told := capsys.readouterr().err) and "used up" in told
    assert spent(folder / FILE_NAME) == 2 and not list(folder.glob("third.csv*"))
    assert call(table, "--scope", "another", out="out/third.csv") == 0  # a promise of its own, on top
    three = compute_epsilon([Mechanism(1.0, 1 / mu_of(1, 1e-5), 3)], 1e-5)
    assert f"all of the ledger ε = {three:.4g}" in card(folder, "third.csv")["statement"]


class CutOffError(RuntimeError):
    """What kills a command in a test."""


def contents(folder: Path) -> list[dict[str, Any]]:
    """What was asked, and what was released, as the ledger holds it."""
    made = Ledger(folder / FILE_NAME).releases("metadata/rows.csv")
    return [dict(own.content) for own in made if own.content is not None]


def test_an_interrupted_command_goes_on_with_what_the_ledger_holds(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fits = table.parent / "out", [0]
    fit = Mixture.fit

    def cut_off(self: Mixture, *args: Any, **options: Any) -> None:
        fits[0] += 1
        if fits[0] == 3:
            raise CutOffError
        options["steps"] = 5
        fit(self, *args, **options)

    monkeypatch.setattr(Mixture, "fit", cut_off)
    with pytest.raises(CutOffError):
        call(table, "--method", "aim")
    assert not (folder / "rows.csv").exists()
    before = contents(folder)
    assert len(before) == 1 + 2 * (3 + 4)
    assert call(table, "--method", "aim") == 0
    assert contents(folder)[:15] == before and spent(folder / FILE_NAME) == 1
    written = (folder / "rows.csv.releases.jsonl").read_text()
    assert [json.loads(line) for line in written.splitlines()] == contents(folder)
    (folder / "rows.csv.releases.jsonl").unlink()  # a copy for readers, which nothing depends on
    assert call(table, "--method", "aim") == 0 and spent(folder / FILE_NAME) == 1
    assert (folder / "rows.csv.releases.jsonl").read_text() == written


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("name", "killed_at"), [("spend", 1), *(("release", number) for number in range(1, 8))])
def test_a_kill_anywhere_loses_no_budget_and_draws_nothing_twice(
    table: Path, name: str, killed_at: int, after: bool
) -> None:
    """Before and after each line of the ledger: a price and values of each column, and the rows."""
    folder = table.parent / "out"
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, Ledger, name, killed_at, after)
        with pytest.raises(Killed):
            call(table)
    before = contents(folder)
    assert call(table) == 0 and spent(folder / FILE_NAME) == 1
    assert contents(folder)[: len(before)] == before and len(contents(folder)) == 7
    assert cli.main(["verify", str(folder / "rows.csv")]) == 0


def test_a_torn_line_of_terms_paid_for_the_releases_that_follow(table: Path) -> None:
    folder = table.parent / "out"
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, Ledger, "spend", 1, after=True)
        with pytest.raises(Killed):
            call(table)
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes()[:-40])
    assert call(table) == 0 and Ledger(path).mechanisms["metadata/rows.csv"].done_steps == 1
    assert contents(folder)[0]["columns"] and len(contents(folder)) == 7
    assert cli.main(["verify", str(folder / "rows.csv")]) == 0


@pytest.mark.parametrize("number", [2, 4, 6])
def test_counts_in_a_torn_line_are_paid_for_and_drawn_anew_from_what_is_left(
    table: Path, number: int, capsys: pytest.CaptureFixture
) -> None:
    folder = table.parent / "out"
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, Ledger, "release", number, after=True)
        with pytest.raises(Killed):
            call(table)
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes()[:-150])
    assert b'"counts": [' in path.read_bytes().splitlines()[-1]
    assert call(table) == 0 and spent(path) == 1
    assert ("drawn equally often" in capsys.readouterr().out) is (number == 6), "nothing is left for the last column"
    squares = [own["mu_squared"] for own in contents(folder) if "mu_squared" in own]
    assert len(squares) == (3 if number == 6 else 4) and sum(squares) == pytest.approx(mu_of(1, 1e-5) ** 2, rel=1e-9)
    assert cli.main(["verify", str(folder / "rows.csv")]) == 0
    written = (folder / "rows.csv").read_text()
    assert call(table) == 0 and (folder / "rows.csv").read_text() == written


def test_two_commands_at_once_release_one_table_once(table: Path, capsys: pytest.CaptureFixture) -> None:
    """In folders of their own, which they hold, and with one ledger, which pays once."""
    ledger = ["--ledger", str(table.parent / "people.jsonl")]
    release, calls = Ledger.release, [0]

    def released(book: Ledger, mechanism: str, **told: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:  # the first has released a column, and the second one the whole table by now
            assert call(table, *ledger, out="two/rows.csv") == 0
        release(book, mechanism, **told)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "release", released)
        assert call(table, *ledger, out="one/rows.csv") == 2
    assert "another process goes on with the releases" in capsys.readouterr().err
    assert call(table, *ledger, out="one/rows.csv") == 0
    assert (table.parent / "one/rows.csv").read_text() == (table.parent / "two/rows.csv").read_text()
    told = [own.content for own in Ledger(table.parent / "people.jsonl").releases("metadata/rows.csv") if own.content]
    assert [own["marginal"] for own in told if "marginal" in own] == [[0], [1], [2]]


def test_rows_that_another_ledger_paid_for_are_verified_beside_it(table: Path, capsys: pytest.CaptureFixture) -> None:
    paid_by, rows = table.parent / "run", str(table.parent / "out" / "rows.csv")
    paid_by.mkdir()
    assert call(table, "--ledger", str(paid_by)) == 0
    assert cli.main(["verify", rows]) == 2 and "by --ledger" in capsys.readouterr().err
    for ledger in (paid_by, paid_by / FILE_NAME):
        assert cli.main(["verify", rows, "--ledger", str(ledger)]) == 0
        assert capsys.readouterr().out.endswith("VERIFIED\n")
    assert cli.main(["verify", str(paid_by), "--ledger", str(paid_by)]) == 2
    assert "is for rows of `metadata`" in capsys.readouterr().err


def test_a_ledger_that_has_released_more_than_was_paid_is_void(table: Path) -> None:
    """As two processes of an earlier version could leave it."""
    assert call(table) == 0
    path = table.parent / "out" / FILE_NAME
    book = Ledger(path)
    book.release("metadata/rows.csv", content={"marginal": [0], "mu_squared": 0.02, "sigma": 7.0, "counts": [1.0]})
    told = Ledger(path).summary()
    assert told["scopes"]["metadata"]["voids"] == ["more was released as rows.csv than was charged"]
    assert told["scopes"]["metadata"]["epsilon"] is None
    assert cli.main(["verify", str(path.parent / "rows.csv")]) == 1


def test_other_terms_are_not_gone_on_with(table: Path, capsys: pytest.CaptureFixture) -> None:
    assert call(table) == 0
    assert call(table, "--columns", "domain") == 2
    assert "of another command, which differs in columns" in capsys.readouterr().err


def test_a_fixed_seed_voids_the_guarantee_wherever_it_is_stated(table: Path) -> None:
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        assert call(table, "--noise-seed", "1") == 0
    told = card(table.parent / "out")
    assert not told["private"] and told["epsilon"] is None and "NOT PRIVATE" in told["statement"]


def test_metadata_and_training_compose_in_one_ledger_as_dp_accounting_says(table: Path) -> None:
    """In the scope of a run: the training leaves room for it, and both together meet the target."""
    run, sigma = table.parent / "run", 1 / mu_of(1, 1e-5)
    spec = plan(300, 15, 2, 2.0, delta=1e-5, histogram_noise_multiplier=sigma)
    book = Ledger(run / FILE_NAME)
    steps = spec.steps
    fit = book.open(scope="attributes", stage="fit", spec=spec, planned_steps=steps, data_fingerprint="f00d")
    for _ in range(steps):
        book.spend(fit)
    more = ["--ledger", str(run), "--scope", "attributes", "--target-epsilon", "2"]
    assert call(table, *more) == 0
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(spec.sample_rate, GaussianDpEvent(spec.noise_multiplier))
    accountant.compose(SelfComposedDpEvent(step, steps))
    accountant.compose(GaussianDpEvent(sigma))
    found = Ledger(run / FILE_NAME).epsilon("attributes")
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3) and 1.98 < found <= 2.0
    assert card(table.parent / "out")["mechanism"] == "attributes/rows.csv"
    assert call(table, *more, out="out/more.csv") == 2


def test_plain_gaussians_of_one_ledger_are_one_gaussian(table: Path) -> None:
    """Metadata, votes and histograms: μ² adds up, exactly."""
    assert call(table, "--target-epsilon", "3") == 0
    assert call(table, "--target-epsilon", "3", "--epsilon", "2", out="out/more.csv") == 0
    mu = math.hypot(mu_of(1, 1e-5), mu_of(2, 1e-5))
    found = Ledger(table.parent / "out" / FILE_NAME).epsilon("metadata")
    assert found == pytest.approx(get_epsilon_gaussian(1 / mu, 1e-5), rel=1e-3)


def test_verify_passes_rows_that_are_as_their_card_says_and_no_others(
    table: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = table.parent / "out" / "rows.csv"
    assert call(table) == 0 and cli.main(["verify", str(rows)]) == 0
    assert "VERIFIED" in capsys.readouterr().out
    good = {path: path.read_text() for path in rows.parent.iterdir()}
    for name, old, new, why in [
        ("rows.csv", "music", "banks", "rows.csv is not as"),
    ]:
        (rows.parent / name).write_text(good[rows.parent / name].replace(old, new))
        assert cli.main(["verify", str(rows)]) == 1
        told = capsys.readouterr().out
        assert why in told and "NOT VERIFIED" in told
        (rows.parent / name).write_text(good[rows.parent / name])
    assert cli.main(["verify", str(table)]) == 2
    assert "has no card" in capsys.readouterr().err


def test_the_page_says_who_may_read_each_file(table: Path) -> None:
    assert call(table) == 0
    page = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text(encoding="utf-8")
    (table_of_files,) = re.findall(r"^\| beside `ROWS.csv` \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.M)
    named = set(re.findall(r"`([\w.*]*\.[\w.*]+)`", table_of_files))
    left = {re.sub(r"^(ledger\.jsonl).*", r"\1*", path.name) for path in (table.parent / "out").iterdir()}
    assert {name.replace("rows.csv", "ROWS.csv") for name in left} == named


def test_two_do_not_go_on_with_the_same_releases(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert call(table) == 0
    monkeypatch.setattr(ownership, "_PATIENCE", 0.1)
    lock = ownership.hold(table.parent / "out")
    assert call(table, out="out/more.csv") == 2
    assert "in use by another process" in capsys.readouterr().err and not list((table.parent / "out").glob("more*"))
    lock.release()

"""ThingTalk goes to Lispress and comes back as it was; what is neither is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from doppel.lispress import is_valid
from studies.structural_sampling.thingtalk import ThingTalkError, from_lispress, to_lispress

MOVIE, NAME = "@org.schema.Movie.Movie", "param:id:Entity(org.schema.Movie:Movie)"
SORTED = f'( sort param:datePublished:Date desc of ( ( {MOVIE} ) filter {NAME} =~ " star wars " ) ) [ 1 ]'
PROGRAMS = {
    f"now => {MOVIE} => notify": f"({MOVIE})",
    f"now => [ param:duration:Measure(ms) ] of ( {SORTED} ) => notify": (
        f"(project (index (sort_desc (filter ({MOVIE}) (=~ (param:id:Entity\\(org.schema.Movie:Movie\\)) "
        '"star wars")) (param:datePublished:Date)) 1) (param:duration:Measure\\(ms\\)))'
    ),
    f'now => ( {MOVIE} ) filter not param:award:String == " a " ^^tt:x and count ( param:b:C ) >= NUMBER_0 => notify': (
        f'(filter ({MOVIE}) (and (not (== (param:award:String) (\\^^tt:x "a"))) (>= (count (param:b:C)) (NUMBER_0))))'
    ),
    f"now => aggregate count of ( ( {MOVIE} ) filter param:d:E >= new Date ( 2020 , , , ) + 1 unit:year ) => notify": (
        f"(aggregate_count (filter ({MOVIE}) (>= (param:d:E) (+ (Date 2020 (_) (_) (_)) (unit:year 1)))))"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_one_tree_and_comes_back(program: str) -> None:
    tree = to_lispress(program)
    assert tree == PROGRAMS[program] and is_valid(tree)
    assert from_lispress(tree) == program


def test_every_published_program_comes_back(data_folder: Path) -> None:
    count = 0
    for path in sorted((data_folder / "schema2qa").glob("*.tsv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file, delimiter="\t"):
                tree = to_lispress(row[2])
                assert is_valid(tree) and from_lispress(tree) == row[2], row[0]
                count += 1
    assert count >= 1987


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "token 1 of 0: expected now"),
        (f"now => ( {MOVIE} => notify", r"token 5 of 6: expected \)"),
        (f"now => ( {MOVIE} ) filter {NAME} => notify", "expected a relation"),
        (f"now => {MOVIE} => notify {MOVIE}", "nothing after notify"),
        (f"now => ( {MOVIE} ) => notify", "brackets or blanks"),
        (f"now => ( {MOVIE} ) filter {NAME} == 1 and {NAME} == 2 or {NAME} == 3 => notify", "binds closer"),
        (f'now => ( {MOVIE} ) filter {NAME} =~ " secret => notify', "expected"),
    ],
)
def test_what_is_no_program_is_refused_without_quoting_it(program: str, message: str) -> None:
    with pytest.raises(ThingTalkError, match=message) as caught:
        to_lispress(program)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "tree", ["(", "(filter (@T))", "(Yield (Ask))", '("x")', "(filter (@T) (and (== (p) 1)))", "5"]
)
def test_a_tree_that_stands_for_no_program_is_refused(tree: str) -> None:
    with pytest.raises(ThingTalkError):
        from_lispress(tree)

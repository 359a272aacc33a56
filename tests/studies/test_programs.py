"""Templates: column 6 of the published files, and what each language hides."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from doppel.selection import ProgramError, templates
from studies.structural_sampling.programs import abstract_query, names, template, tree
from studies.structural_sampling.split import compositional_split

BOOK = "( @org.schema.Book.Book )"
NAME = "param:id:Entity(org.schema.Book:Book)"
THINGTALK = {
    f'now => {BOOK} filter {NAME} =~ " the giver " => notify': "( schema_table ) filter param:property REL_OP VALUE",
    f"now => {BOOK} filter param:a.b:Number >= 300 => notify": "( schema_table ) filter param:property REL_OP 300",
    f"now => {BOOK} filter param:a:Date >= now - NUMBER_0 unit:day and param:b:Boolean == true => notify": (
        "( schema_table ) filter param:property REL_OP VALUE LOG_OP param:property REL_OP VALUE"
    ),
    f"now => {BOOK} filter param:a:Date <= new Date ( 2020 , , , ) + 1 unit:year => notify": (
        "( schema_table ) filter param:property REL_OP VALUE"
    ),
    f'now => {BOOK} filter not param:geo == location: " paris " and param:e:Enum(a,b) == enum:a => notify': (
        "( schema_table ) filter LOG_OP param:property REL_OP VALUE LOG_OP param:property REL_OP VALUE"
    ),
    f'now => {BOOK} filter param:w == " ana " ^^tt:us_state => notify': (
        "( schema_table ) filter param:property REL_OP VALUE"
    ),
    f"now => ( sort param:n:Number desc of ( compute count ( param:r:Array(a) ) of {BOOK} ) ) [ 1 : 5 ] => notify": (
        "( FUNC_OP param:property FUNC_MOD of ( FUNC_OP ( param:property ) of ( schema_table ) ) ) [ VALUE : VALUE ]"
    ),
    f"now => aggregate max param:n:Number of ( {BOOK} join {BOOK} ) => notify": (
        "FUNC_OP max param:property of ( ( schema_table ) join ( schema_table ) )"
    ),
    f"now => sort param:n:Date desc of {BOOK} => notify": "FUNC_OP param:property FUNC_MOD of ( schema_table )",
    f'now => {BOOK} filter count ( param:r:Array(a) filter {{ param:v:String =~ " x " }} ) >= NUMBER_0 => notify': (
        "( schema_table ) filter FUNC_OP ( param:property filter { param:property REL_OP VALUE } ) REL_OP VALUE"
    ),
    f"now => {BOOK} filter param:a:Time <= time:15:0:0 and {NAME} in_array param:r:Array(Entity(a:b)) => notify": (
        "( schema_table ) filter param:property REL_OP VALUE LOG_OP param:property REL_OP param:property"
    ),
    f"now => [ {NAME} ] of {BOOK} => notify": "[ param:property ] of ( schema_table )",
}


@pytest.mark.parametrize("program", THINGTALK)
def test_a_thingtalk_template_hides_entities_tables_properties_and_operators(program: str) -> None:
    assert template(abstract_query(program)) == f"now => {THINGTALK[program]} => notify"
    tree(abstract_query(program))


def test_a_lispress_query_is_its_template() -> None:
    query = abstract_query('(f "x" (g))')
    assert query == template(query) == templates.template('(f "x" (g))')


def test_queries_keep_tables_properties_and_operators() -> None:
    query = abstract_query(f'now => {BOOK} filter {NAME} =~ " the giver " => notify')
    assert query == f"now => {BOOK} filter {NAME} =~ VALUE => notify"
    assert names(f'now => {BOOK} filter {NAME} =~ " not and " ^^tt:x => notify') == {BOOK[2:-2], NAME, "=~", "^^tt:x"}
    assert tree(query)[0] == "filter"
    assert tree('(f :x (^(T) g) "a")') == ("f", ((":x", (("^(T) g", ()),)), ('"a"', ())))


@pytest.mark.parametrize(
    "program",
    ["", " ", "show me books", f"now => {BOOK}", f"now => ( {BOOK} => notify", "now => ) ( => notify", "(f", '(f "x)']
    + [f'now => {BOOK} filter {NAME} =~ " secret => notify', f"now => {BOOK} ] => notify"],
)
def test_a_broken_program_is_refused_and_not_quoted(program: str) -> None:
    with pytest.raises(ProgramError) as caught:
        abstract_query(program)
    assert "secret" not in str(caught.value)


def published(folder: Path) -> dict[str, list[list[str]]]:
    """Rows of the Schema2QA files at hand; the published five are these three and two test sets."""
    return {
        path.stem: list(csv.reader(path.open(encoding="utf-8", newline=""), delimiter="\t"))
        for path in sorted((folder / "schema2qa").glob("*.tsv"))
    }


def test_column_six_is_reproduced_on_every_published_row(data_folder: Path) -> None:
    count = 0
    for rows in published(data_folder).values():
        for row in rows:
            query = abstract_query(row[2])
            assert template(query) == row[5], row[0]
            tree(query)
            count += 1
    assert count in (1987, 2490)


def test_the_published_split_has_the_counts_and_the_properties_of_the_document(data_folder: Path) -> None:
    rows = published(data_folder)
    found = {name: [template(abstract_query(row[2])) for row in rows[name]] for name in rows}
    seen = set(found["program_train"])
    counts = {name: (len(of), len(set(of)), len(set(of) - seen)) for name, of in found.items()}
    known = {  # Table 4: rows, templates, templates that are not in train
        "program_train": (1619, 33, 0),
        "iid_dev": (180, 10, 1),
        "iid_test": (199, 12, 1),
        "program_dev": (188, 19, 19),
        "program_test": (304, 20, 20),
    }
    assert counts == {name: known[name] for name in rows}
    trained = set().union(*(names(row[2]) for row in rows["program_train"]))
    for name in rows:
        assert all(names(row[2]) <= trained for row in rows[name]), name


def test_a_split_keeps_its_promises(data_folder: Path) -> None:
    programs = [row[2] for rows in published(data_folder).values() for row in rows]
    templates = [template(abstract_query(program)) for program in programs]
    named = [names(program) for program in programs]
    split = compositional_split(templates, named, seed=3)
    assert split == compositional_split(templates, named, seed=3) != compositional_split(templates, named, seed=4)
    assert sorted(row for rows in split.values() for row in rows) == list(range(len(programs)))
    kinds = {name: {templates[row] for row in rows} for name, rows in split.items()}
    for comp, others in (("comp_dev", "comp_test"), ("comp_test", "comp_dev")):
        assert kinds[comp] and not kinds[comp] & set().union(
            *(kinds[n] for n in ("train", "iid_dev", "iid_test", others))
        )
    trained = set().union(*(named[row] for row in split["train"]))
    for name in ("iid_dev", "iid_test", "comp_dev", "comp_test"):
        assert all(named[row] <= trained for row in split[name])
    assert all(not named[row] <= trained for row in split["dropped"])


def test_a_split_trains_on_the_basic_templates_and_drops_unseen_names() -> None:
    templates = ["basic"] * 10 + ["a", "a", "b", "c"]
    named = [{"x"}] * 10 + [{"x"}, {"new"}, {"x"}, {"x"}]
    for seed in range(8):
        split = compositional_split(templates, named, seed, comp_share=0.34, iid_share=0.1, basic={"basic"})
        trained = {templates[row] for row in split["train"]}
        assert "basic" in trained and len(split["comp_dev"] + split["comp_test"]) >= 1
        assert 11 not in split["comp_dev"] + split["comp_test"]
    with pytest.raises(ValueError, match="shares"):
        compositional_split(["a", "b"], [set(), set()], comp_share=0.5)
    with pytest.raises(ValueError, match="0.6"):
        compositional_split(["a"], [set()], comp_share=0.6)
    with pytest.raises(ValueError, match="1 templates, 0"):
        compositional_split(["a"], [])

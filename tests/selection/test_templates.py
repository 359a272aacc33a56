"""Templates of Lispress: what they hide, and that a broken program is refused."""

from __future__ import annotations

import pytest

from doppel.selection import ProgramError, template

LISPRESS = {
    '(Yield (Create (Event.subject_? (?= "lunch")) (PersonName.apply "Ana")))': (
        "(Yield (Create (Event.subject_? (?= VALUE)) VALUE))"
    ),
    "(Yield (Find (MD 5L (May)) (NextDOW (Friday)) (Here)))": "(Yield (Find VALUE (NextDOW VALUE) (Here)))",
    '(f :x (HourMinutePm 3L 30L) :y #(Number 2) :z (^(Long) g "a"))': "(f :x VALUE :y VALUE :z (^(Long) g VALUE))",
    "(Path.apply (Number x))": "(Path.apply (Number x))",
}


@pytest.mark.parametrize("program", LISPRESS)
def test_a_template_hides_strings_numbers_dates_and_names(program: str) -> None:
    assert template(program) == template(template(program)) == LISPRESS[program]


@pytest.mark.parametrize("program", ["", " ", "show me secret books", "(f", '(f "secret)', "now => @a.B => notify"])
def test_a_broken_program_is_refused_and_not_quoted(program: str) -> None:
    with pytest.raises(ProgramError) as caught:
        template(program)
    assert "secret" not in str(caught.value)

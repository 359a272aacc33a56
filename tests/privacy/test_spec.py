"""The plan: exact step counts, one sigma for several stages, values that cannot be a guarantee refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, replace

import pytest
from known_plans import KNOWN, known_plan

from doppel.privacy.accounting import CalibrationError, default_delta
from doppel.privacy.spec import plan, what_is_protected


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_plans_whose_noise_is_written_down_are_those_of_a_calibration(name):
    _, given, named = KNOWN[name]
    found, known = plan(*given, **named), known_plan(name)
    assert replace(found, noise_multiplier=known.noise_multiplier) == known
    assert found.noise_multiplier == pytest.approx(known.noise_multiplier, rel=1e-8)  # processors round otherwise


def test_two_stages_share_one_sigma_and_cost_one_run_of_all_epochs():
    two, one = plan(20_000, 500, [2, 8], 4.0), plan(20_000, 500, 10, 4.0)
    assert two.stage_steps == (80, 320) and one.stage_steps == (400,)
    assert two.noise_multiplier == one.noise_multiplier
    assert two.budget.allows(two.mechanisms())


@pytest.mark.parametrize(
    ("units", "batch", "epochs", "steps"),
    [
        (133_584, 2048, 10, 653),
        (133_584, 2048, 7, 457),
        (1000, 100, 3, 30),
        (1000, 100, 0.3, 3),
        (49, 1, 1, 49),
    ],
)
def test_steps_are_counted_exactly(units, batch, epochs, steps, monkeypatch):
    """Ten percent of 1,000 units, three times, is 30 steps: no rounding error may add one."""
    monkeypatch.setattr("doppel.privacy.plan.calibrate", lambda *_: 1.0)
    assert plan(units, batch, epochs, 8.0, delta=1e-7, accountant="rdp").steps == steps


@pytest.mark.slow
def test_delta_defaults_below_one_over_n_and_a_large_one_is_questioned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for num_units in (2, 300, 5000, 20_000):
            assert plan(num_units, 1, 1, 8.0, accountant="rdp").budget.delta == default_delta(num_units) <= 1e-5
    with pytest.warns(UserWarning, match="delta"):
        plan(5000, 100, 1, 8.0, delta=1e-3)


@pytest.mark.slow
def test_a_delta_that_few_units_make_large_is_questioned():
    with pytest.warns(UserWarning, match="fewer than 1,000 units"):
        plan(300, 30, 1, 8.0, delta=2e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plan(300, 30, 1, 8.0).budget.delta == 1e-5


@pytest.mark.parametrize("delta", [1e-15, 1e-18])
def test_a_delta_below_what_an_accountant_resolves_is_refused_and_another_one_named(delta):
    with pytest.raises(CalibrationError, match="below what the pld accountant resolves.*rdp"):
        plan(100_000, 5000, 3, 8.0, delta=delta)
    assert plan(100_000, 5000, 3, 8.0, delta=delta, accountant="rdp").noise_multiplier < 2


def test_dictionary_is_json_and_complete():
    spec = plan(5000, 100, [1, 2], 8.0, unit="dialogue", max_grad_norm=0.3, max_rows_per_unit=4)
    found = json.loads(json.dumps(spec.to_dict()))
    own = {**asdict(spec), "stage_steps": [50, 100], "batch_size": 100}
    left_out = {"expected_batch_size", "bands"}
    assert found == {**own.pop("budget"), **{name: own[name] for name in own if name not in left_out}}
    assert (found["unit"], found["max_rows_per_unit"]) == ("dialogue", 4)


def test_the_rows_of_a_unit_do_not_enter_sigma_but_are_told():
    few, many = (plan(5000, 100, 1, 8.0, unit="user", accountant="rdp", max_rows_per_unit=m) for m in (1, 50))
    assert few.noise_multiplier == many.noise_multiplier
    assert "one user" in what_is_protected("user", 50) and "at most 50 of them" in what_is_protected("user", 50)
    assert "at most" not in what_is_protected("user")
    assert "k of them" in what_is_protected("utterance", 1)
    assert what_is_protected("household", 3) == "one household"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 5001}, "larger than num_units"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_units": 1}, "at least 2 units"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": [2, float("nan")]}, "epochs is nan"),
        ({"epochs": []}, "epochs is empty"),
        ({"target_epsilon": 0}, "target_epsilon is 0"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"max_grad_norm": -0.1}, "max_grad_norm is -0.1"),
        ({"unit": ""}, "unit"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit is 0"),
    ],
)
def test_nonsense_is_refused_in_one_line(arguments, words):
    call = {
        "num_units": 5000,
        "batch_size": 100,
        "epochs": 1,
        "target_epsilon": 8.0,
        "accountant": "rdp",
        **arguments,
    }
    with pytest.raises(CalibrationError, match=words) as error:
        plan(**call)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier is 0.0"),
        ({"stage_steps": (10, 0)}, "stage_steps"),
    ],
)
def test_a_plan_by_hand_must_be_consistent(change, words):
    made = plan(5000, 100, 1, 8.0, accountant="rdp")
    with pytest.raises(CalibrationError, match=words):
        replace(made, **change)
    with pytest.raises(CalibrationError, match="gdp"):
        replace(made.budget, accountant="gdp")

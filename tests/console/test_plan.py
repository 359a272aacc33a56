"""`plan`: the JSON's keys and numbers, the table, errors in one line, and no heavy import for `--json`."""

from __future__ import annotations

import json
import math

import pytest

from doppel.console.command import call as call_command
from doppel.console.plan import plan
from doppel.errors import UserError

CALL = ["--num-units", "20000", "--batch-size", "500", "--epochs", "2", "8", "--target-epsilon", "4"]


def run(capsys: pytest.CaptureFixture[str], *extra: str, call: list[str] = CALL) -> str:
    call_command(plan, [*call, *extra], "doppel plan")
    return capsys.readouterr().out


def test_json_has_the_promised_keys_and_consistent_numbers(capsys):
    result = json.loads(run(capsys, "--json"))
    assert result["steps"] == sum(result["stage_steps"]) == 400 and result["stage_steps"] == [80, 320]
    assert result["sample_rate"] == 500 / 20000 and result["delta"] == pytest.approx(1 / (20000 * math.log(20000)))
    assert 0.99 * 4 <= result["epsilon"] <= 4 == result["target_epsilon"]
    assert result["accountant"] == "pld" and (result["num_units"], result["batch_size"]) == (20000, 500)
    noise = result["noise_multiplier"] * math.sqrt(result["num_parameters"]) / 500
    assert result["noise_to_signal"] == pytest.approx(noise) and result["warnings"] == []


def test_a_small_data_set_is_told_what_it_gets(capsys):
    """600 rows and the shipped base: noise of sigma sqrt(d) / (B sqrt(T)), far above the largest signal."""
    small = ["--num-units", "600", "--batch-size", "512", "--epochs", "1", "2", "--target-epsilon", "8"]
    result = json.loads(run(capsys, "--num-parameters", "5853184", "--json", call=small))
    assert result["noise_over_training"] == pytest.approx(result["noise_to_signal"] / math.sqrt(result["steps"]))
    assert 2 < result["noise_over_training"] < 3 and "2,000 requests" in result["verdict"]
    assert result["warnings"] == []


def test_the_weights_of_the_base_and_a_twentieth_of_the_units_are_taken_unless_others_are_given(capsys, tmp_path):
    call = ["--num-units", "9000", "--epochs", "3", "--target-epsilon", "8", "--accountant", "rdp", "--json"]
    result = json.loads(run(capsys, call=call))
    assert (result["num_parameters"], result["batch_size"]) == (5_853_184, 450)
    with pytest.raises(UserError, match="--num-parameters"):
        run(capsys, "--base", str(tmp_path), call=call)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(UserError, match="safetensors"):
        run(capsys, "--base", str(tmp_path), call=call)


@pytest.mark.parametrize(
    ("units", "word"),
    [
        (600, "hopeless"),
        (2000, "2,000 requests"),
        (9000, "10,060 requests"),
        (40_000, "39,919 requests"),
        (400_000, "not measured"),
    ],
)
def test_the_noise_is_told_in_words(capsys, units, word):
    call = ["--num-units", str(units), "--epochs", "3", "--target-epsilon", "8", "--accountant", "rdp", "--json"]
    assert word in json.loads(run(capsys, call=call))["verdict"]


def test_the_table_compares_accountants_and_questions_a_large_delta(capsys):
    text = run(capsys, "--delta", "1e-4", "--accountant", "rdp", "--num-parameters", "1000")
    epsilons = {a: float(text.split(f"epsilon by {a}")[1].split()[0]) for a in ("pld", "rdp")}
    assert epsilons["pld"] < epsilons["rdp"] <= 4.0
    assert "warning: delta 0.0001 is not below 1/N" in text and "400  (80 + 320)" in text
    assert len({line.index(line.split("  ")[-1].strip()) for line in text.splitlines()[:4]}) == 1, "not aligned"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--batch-size", "20001"], "num_units"),
        (["--epochs", "-2"], "epochs is -2"),
        (["--target-epsilon", "1e-7"], "target"),
        (["--delta", "2"], "delta is 2"),
        (["--num-parameters", "0"], "num_parameters is 0"),
    ],
)
def test_what_cannot_be_planned_is_one_line(capsys, extra, words):
    place = CALL.index(extra[0]) if extra[0] in CALL else len(CALL)
    call = [*CALL[:place], *extra, *CALL[place + 2 :]]  # in place of the usual value
    with pytest.raises(UserError, match=words) as error:
        run(capsys, call=call)
    assert "\n" not in str(error.value)


def test_help_defines_noise_to_signal(capsys):
    with pytest.raises(SystemExit):
        run(capsys, call=["--help"])
    assert "noise-to-signal = sigma * sqrt(d) / B" in capsys.readouterr().out


def test_adapters_are_counted(capsys):
    from transformers import AutoModelForCausalLM

    from doppel.models.adapters import LoraArguments, add_adapters

    model = AutoModelForCausalLM.from_pretrained("models/base")
    add_adapters(model, LoraArguments(rank=4))
    call = ["--num-units", "9000", "--epochs", "3", "--target-epsilon", "8", "--accountant", "rdp", "--lora", "4"]
    once = json.loads(run(capsys, "--json", call=call))
    assert once["num_parameters"] == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.fixture
def base(tmp_path) -> str:
    """A folder with a configuration alone, of the published Llama-3.1-8B with two of its layers."""
    from transformers import AutoConfig

    from benchmarks._subject import SIZES

    fields = SIZES["llama-3.1-8b"] | {"num_hidden_layers": 2}
    AutoConfig.for_model(fields.pop("model_type"), **fields).save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def test_memory_is_told_from_the_configuration_alone(capsys, base):
    def memory(*extra):
        return json.loads(run(capsys, "--json", *extra, call=["--base", base, "--gpu", "h100-80"]))

    found = memory("--lora", "16", "--num-gpus", "8", "--batch-size", "2048")
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert found["num_weights"] - found["num_trained"] == 2 * layer + 2 * 128256 * 4096 + 4096
    assert found["base_bytes"] == pytest.approx(2 * (found["num_weights"] - found["num_trained"]), rel=1e-5)
    assert found["num_trained"] == 2 * 16 * (2 * 8192 + 2 * 5120 + 3 * (4096 + 14336))
    assert found["checkpoint_bytes"] == pytest.approx(12 * found["num_trained"], rel=0.1)
    kept = found["kept_bytes"] / (4 * found["num_trained"])
    tokens, units = found["max_tokens_per_micro_batch"], found["max_units_per_micro_batch"]
    assert kept in (tokens // 64, min(tokens // 12, units)), "a gradient of each unit of long or of short rows"
    assert found["fits"] and found["num_micro_batches"] >= 1 and found["peak_bytes"] < 80e9
    packed = memory("--lora", "16", "--quantization", "nf4")
    assert packed["base_bytes"] < found["base_bytes"] - 1.4 * 2 * layer
    assert not json.loads(run(capsys, "--json", call=["--base", base, "--gpu", "t4-16"]))["fits"], "all weights"


def test_memory_stands_beside_the_plan_and_says_what_to_take(capsys, base):
    text = run(capsys, "--base", base, "--lora", "16", "--gpu", "l4-24", call=CALL)
    assert "noise multiplier" in text and "kept gradients" in text and "of 24 GB on each l4" in text
    assert "it fits; take data.max_tokens_per_micro_batch=" in text and "micro-batches a step" in text


@pytest.mark.slow
def test_memory_counts_the_noise_that_bands_keep(capsys, base):
    """Those of the plan, or as they are asked for."""
    asked = ["--base", base, "--gpu", "l4-24", "--num-gpus", "2", "--bands", "8"]
    for call in (CALL, []):
        found = json.loads(run(capsys, *asked, "--json", call=call))
        memory = found["memory"] if call else found
        assert memory["noise_bytes"] == 7 * 8 * memory["num_trained"] // 2
        assert memory["optimizer_bytes"] == 2 * memory["trained_bytes"]
    assert "mean of DPAdam" in run(capsys, *asked, call=[])


@pytest.mark.parametrize(
    ("call", "words"), [(["--gpu", "h100"], "such as h100-80"), ([], "give --num-units"), (["--epochs", "1"], "--gpu")]
)
def test_a_plan_of_nothing_says_what_to_give(capsys, call, words):
    with pytest.raises(UserError, match=words):
        run(capsys, call=call)

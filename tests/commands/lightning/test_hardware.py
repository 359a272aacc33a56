"""A build of PyTorch runs on a GPU whose architecture it holds; ``auto`` is a precision that the machine is fast in."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from callbacks.row_independence import check_row_independence
from commands.lightning import hardware
from commands.lightning.hardware import mixing_size, seconds_of_product, settled_precision, supports, what_auto_saves
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from lightning_modules.causal_lm import UtteranceLM
from tests.tiny_model import write_model

ROOT = Path(__file__).resolve().parents[3]
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((7, 0), CU126, True),  # V100
        ((7, 0), CU130, False),
        ((8, 9), CU130, True),  # runs the code of 8.6
        ((9, 0), CU126, True),
        ((10, 0), CU126, False),
        ((12, 1), CU130, True),
        ((13, 0), CU130, True),  # compiled from compute_120
        ((9, 0), ["sm_90a"], True),
        ((7, 0), [], False),
    ],
)
def test_machine_code_runs_on_its_major_number_and_intermediate_code_on_newer_ones(
    capability: tuple[int, int], architectures: list[str], expected: bool
) -> None:
    assert supports(capability, architectures) is expected


@pytest.mark.parametrize(
    ("gpu", "cpu", "accelerator", "expected"),
    [
        (None, "avx512_bf16", "auto", "bf16-mixed"),
        (None, "", "auto", "32-true"),
        ("has bfloat16", "", "auto", "bf16-mixed"),
        ("has none", "avx512_bf16", "gpu", "16-mixed"),
        ("has none", "avx512_bf16", "cpu", "bf16-mixed"),
        ("has bfloat16", "", "cpu", "32-true"),  # the GPU is not used
    ],
)
def test_auto_takes_bfloat16_where_the_device_has_it_and_float16_on_an_older_gpu(
    gpu: str | None, cpu: str, accelerator: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu == "has bfloat16")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "cpu_bf16", lambda: cpu)
    assert settled_precision(accelerator, "auto") == expected


def test_auto_is_float32_on_a_cpu_that_mixes_rows_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(hardware, "cpu_bf16", lambda: "avx512_bf16")
    monkeypatch.setattr(hardware, "rank_zero_info", said.append)
    monkeypatch.setattr(hardware, "_mixes_rows", lambda size: size % 2 == 1)  # as with these instructions
    names = {321: str(tmp_path / "odd"), 320: str(tmp_path / "even")}
    for num_tokens, folder in names.items():
        write_model(Path(folder), vocab_size=num_tokens)
    odd, even = mixing_size({"init_args": {"base_model": names[321]}}, {}), {"base_model": names[320]}
    assert odd == f"321, the vocab_size of {names[321]}"
    assert mixing_size({"init_args": {**even, "lora": {"rank": 3}}}, {}) == "3, the lora.rank"
    for none in ({"init_args": {**even, "lora": {"rank": 4}}}, {"class_path": "mine.Model"}, None):
        assert mixing_size(none, {}) is None
    assert mixing_size({"init_args": {"base_model": "./gone"}}, {}) is None, "what builds the model says better"
    assert mixing_size({"init_args": {"base_model": names[321]}}, None) is None, "without privacy no row is protected"
    assert settled_precision("cpu", "auto", odd) == "32-true" and "mix rows" in said[-1]
    assert settled_precision("cpu", "auto", None) == "bf16-mixed"


@pytest.mark.parametrize("size", [336, 352, 3, 4])
def test_no_size_that_the_check_of_a_private_training_refuses_is_taken_in_bfloat16(size: int, tmp_path: Path) -> None:
    write_model(tmp_path, vocab_size=size if size > 300 else 352)
    lora = LoraArguments(rank=size if size < 300 else 4)
    module = UtteranceLM(base_model=str(tmp_path), lora=lora, max_length=32).train()
    module._trainer = Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False)
    given = {"init_args": {"base_model": str(tmp_path), "lora": {"rank": lora.rank}}}
    try:
        assert check_row_independence(module) is None
    except UserError as error:
        assert mixing_size(given, {}) is not None and "over some sizes, such as" in str(error)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_a_slow_precision_is_left_as_it_is_and_warned_of(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(hardware, "cpu_bf16", lambda: "")
    monkeypatch.setattr(hardware, "rank_zero_warn", warnings.append)
    assert settled_precision("cpu", precision) == precision
    assert len(warnings) == (precision != "32-true")


@pytest.mark.parametrize(
    ("gpu", "accelerator", "precision", "told"),
    [
        ("has bfloat16", "auto", "32-true", "8.0 times as long as in bf16-mixed, and activations twice the memory"),
        ("has none", "gpu", "32-true", "8.0 times as long as in 16-mixed"),
        ("has bfloat16", "auto", "bf16-mixed", None),
        ("has bfloat16", "cpu", "32-true", None),
        (None, "auto", "32-true", None),
    ],
)
def test_a_training_in_float32_on_a_gpu_is_told_what_auto_saves(
    gpu: str | None, accelerator: str, precision: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu == "has bfloat16")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "seconds_of_product", lambda device, dtype: 4.0 if dtype is torch.float32 else 0.5)
    found = what_auto_saves(accelerator, precision)
    assert found is None if told is None else found is not None and told in found and "\n" not in found


def test_products_are_timed_where_they_run() -> None:
    assert 0 < seconds_of_product(torch.device("cpu"), torch.float32, 64) < 1


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 only")
def test_a_cpu_whose_bfloat16_is_not_used_has_none() -> None:
    """oneDNN, told to use older instructions, is as slow as a CPU that has no others."""
    words = [sys.executable, "-c", "from commands.lightning.hardware import cpu_bf16; print(cpu_bf16() or 'none')"]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    said = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "none"

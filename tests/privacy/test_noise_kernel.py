"""The kernel of noise adds what tensor operations add, to the bit; shown without a GPU.

Triton's interpreter runs the kernel's own code on the CPU; its compiler makes what a GPU would run.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from doppel.privacy import noise
from doppel.privacy.noise import PART, add_by_tensors

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="no Triton: pip install 'doppel[triton]'; wheels of torch for CUDA bring it",
)
HERE = Path(__file__).parent

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from doppel.privacy.noise_kernel import _VARYING, _add_noise

types = {name: "i64" if name in ("std_by_grid", "one_by_grid", "grid", "pi") else "i32" for name in _VARYING}
for flat in ("*fp32", "*fp64"):
    signature = {"flat": flat, **types, "part": "constexpr", "lanes": "constexpr"}
    source = ASTSource(_add_noise, signature, constexprs={"part": 64, "lanes": 128})
    for capability in (70, 80, 90, 100):
        made = compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
        assert made.asm["cubin"] and f"sm_{capability}" in made.asm["ptx"]
"""


def run(*words: str, **environment: str) -> None:
    """Run Python in a process of its own."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TRITON")}
    environment = others | {"PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"} | environment
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_kernel_adds_to_the_bit_what_tensor_operations_add_or_is_not_used() -> None:
    run(str(HERE / "interpreted_kernel.py"), TRITON_INTERPRET="1")


@pytest.mark.slow
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    """From V100 to B200."""
    run("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernel_adds_to_the_bit_on_a_gpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    for num, dtype in itertools.product((1, 1003, 4_880_000), (torch.float32, torch.float64)):
        way = noise._best_way(device, dtype)
        assert way is not add_by_tensors
        arguments = bytes(range(200, 232)), 77 * PART, 1.62, 2.0**-29
        expected = torch.randn(num, device=device, dtype=dtype)
        found = expected.clone()
        add_by_tensors(expected, *arguments)
        way(found, *arguments)
        assert torch.equal(found, expected)

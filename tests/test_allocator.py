"""The memory of tensors is kept."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FAULTS = """
import resource
import sys
import torch
from doppel.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**20 + 1000 * number) for number in range(40)]
    del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    assert keep_freed_memory()
print(*[faults() for _ in range(4)])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_step_takes_the_pages_of_the_one_before() -> None:
    found = {}
    for how in ("leave", "keep"):
        words = [sys.executable, "-c", _FAULTS, how]
        found[how] = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert int(found["leave"][-1]) > 1000
    assert int(found["keep"][-1]) < int(found["leave"][-1]) / 10

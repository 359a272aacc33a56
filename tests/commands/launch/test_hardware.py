"""A build of PyTorch runs on a GPU whose architecture it holds."""

from __future__ import annotations

import pytest

from commands.launch.hardware import supports

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

"""A step of two tasks on a real SLURM, of which the second reads private texts for the first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.shared_reading import check_shared, folder_of_stage, readers, variables_of, words_of
from tests.slurm.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize("killed", ["", "1"])
def test_two_tasks_of_a_job_share_the_reading_and_one_that_is_killed_does_not_end_it(
    killed: str, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    place = folder_of_stage(tmp_path / "run")
    options = ["--parsable", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={place}/job.out"]
    script = [f"{ROOT}/slurm/tool.sbatch", str(place), "counted", sys.executable, *words_of(place)]
    variables = {**variables_of(place, int(not killed), killed), "DOPPEL_CODE": str(ROOT), "OMP_NUM_THREADS": "1"}
    job = slurm_cluster.run("sbatch", *options, *script, **variables).strip()
    slurm_cluster.wait(job, "COMPLETED")
    check_shared(place)
    assert set(readers(place)) <= ({"0"} if killed else {"0", "1"}) and (killed or "1" in readers(place))
    logs = sorted(path.name for path in (place / "slurm").iterdir())
    assert logs == [f"counted-{job}_{task}.out" for task in (0, 1)], "the board is gone"

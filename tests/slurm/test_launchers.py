"""Trainings in jobs of one's own: by torchrun, by srun and ``--ntasks``, by Lightning; and in a container."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from doppel.privacy.ledger import Ledger
from tests.slurm.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "launcher", "devices"),
    [
        (["--ntasks-per-node=1"], "{bin}/torchrun --nproc-per-node 2", 2),
        (["--ntasks=2"], "srun {python}", 2),
        (["--ntasks=1"], "srun {python}", 1),
        (["--ntasks=2"], "{python}", 2),  # no srun: Lightning starts the second one
    ],
    ids=["torchrun", "ntasks", "one-task", "no-srun"],
)
def test_processes_find_one_another_in_a_job(
    options: list[str],
    launcher: str,
    devices: int,
    slurm_cluster: SlurmCluster,
    tmp_path: Path,
    tiny_model: str,
    corpus: str,
) -> None:
    start = launcher.format(bin=Path(sys.executable).parent, python=sys.executable)
    words = (
        f"fit --config configs/utterance_lm.yaml --model.init_args.base_model {tiny_model} --run_dir {tmp_path}/run/fit"
    )
    words += f" --data datamodules.dialogue_data_module.DialogueDataModule --data.init_args.train_path {corpus}"
    words += " --data.init_args.batch_size 12 --data.init_args.unit utterance"
    words += " --trainer.max_epochs 1 --trainer.accelerator cpu --privacy.target_epsilon 8"
    command = f"{start} {ROOT}/cli.py {words} --trainer.devices {devices}"
    place = [f"--chdir={ROOT}", f"--output={tmp_path}/out"]
    job = slurm_cluster.run("sbatch", "--parsable", *options, *place, f"--wrap={command}", OMP_NUM_THREADS="1").strip()
    done = slurm_cluster.wait(job, "COMPLETED", timeout=300)
    told = (tmp_path / "out").read_text()
    assert f"MEMBER: {devices}/{devices}" in told if devices == 2 else "GLOBAL_RANK: 1" not in told, told
    (spent,) = Ledger(tmp_path / "run" / "ledger.jsonl").mechanisms.values()
    assert spent.done_steps == 5, slurm_cluster.output(done)

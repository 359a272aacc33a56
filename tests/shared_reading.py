"""A resampling by topics that several tasks share, in small parts, one of which may be killed."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from commands.privacy.embedded_parts import EMBEDDED
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan

ROOT = Path(__file__).resolve().parents[1]
NUM_PARTS = 6

#: The command line, with small parts and no noise. The first task waits until the others have read, or been killed.
TASK = """
import os, signal, sys, time
from pathlib import Path
from commands.privacy import embedded_parts
from doppel.privacy import release

place, rank = Path(os.environ["PLACE"]), int(os.environ["SLURM_PROCID"])
embedded_parts._PART = 9
release.add_noise = lambda sums, sigma, seed=None: dict(sums)
take, write = embedded_parts._take, embedded_parts._write
deadline = time.monotonic() + 120


def is_to_go_on():
    is_read = any(place.glob("train/.embedded/*.npy"))
    return (is_read or os.environ["HELPERS"] == "0") and (place / "killed").exists() >= (os.environ["KILLED"] != "")


def take_late(*arguments, **options):
    while not is_to_go_on() and time.monotonic() < deadline:
        time.sleep(0.1)
    take(*arguments, **options)


def noted_write(file, *arguments):
    if str(rank) == os.environ["KILLED"]:
        (place / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write(file, *arguments)
    with (place / "written").open("a") as notes:
        notes.write(f"{rank} {file.parent.name}\\n")


if rank == 0:
    embedded_parts._take = take_late
embedded_parts._write = noted_write
if __name__ == "__main__":
    import cli
    sys.exit(cli.main(sys.argv[1:]))
"""


def folder_of_stage(place: Path) -> Path:
    """A run folder in which a stage was trained, and announced a histogram."""
    place.mkdir()
    said = [f"{'please ' * (i % 5)}{'order a pizza' if i % 3 else 'set an alarm'} number {i}" for i in range(50)]
    (place / "train.jsonl").write_text("".join(json.dumps({"utterance": text}) + "\n" for text in said))
    (place / "pool.jsonl").write_text("".join(json.dumps({"utterance": f"{text}, now"}) + "\n" for text in said))
    sigma, file = 5.0, str(place / "ledger.jsonl")
    spec = plan(50, 10, 1, 8.0, accountant="rdp", histogram_noise_multiplier=sigma)
    ledger = Ledger(place / "ledger.jsonl")
    name = ledger.open(scope="one", stage="train", spec=spec, planned_steps=5, data_fingerprint="f00d")
    for _ in range(5):
        ledger.spend(name)
    privacy = {"target_epsilon": 8.0, "accountant": "rdp", "scope": "one", "ledger_path": file}
    data = {"init_args": {"train_path": str(place / "train.jsonl"), "unit": "utterance"}}
    (place / "train").mkdir()
    told = {"privacy": {**privacy, "histogram_noise_multiplier": sigma}, "data": data}
    (place / "train" / "config.yaml").write_text(yaml.safe_dump(told))
    return place


def words_of(place: Path) -> list[str]:
    """A command line that resamples by topics in small parts; written to the stage's folder as ``small_cli.py``."""
    (place / "small_cli.py").write_text(TASK)
    words = ["step", "resample", str(place / "train"), "--pool", str(place / "pool.jsonl"), "--num-topics=3"]
    words += ["--out", str(place / "out.jsonl"), "--num-samples=10", f"--encoder={ROOT / 'models/base'}", "--seed=1"]
    return [str(place / "small_cli.py"), *words]


def variables_of(place: Path, num_helpers: int, killed: str = "") -> dict[str, str]:
    """Variables of the tasks: how many beside the first read, and which is killed at its first part."""
    return {"PLACE": str(place), "HELPERS": str(num_helpers), "KILLED": killed, "PYTHONPATH": str(ROOT)}


def check_shared(place: Path) -> tuple[bytes, ...]:
    """Check that each part was read once and the counts were charged once; what was released and drawn."""
    train, histogram = Ledger(place / "ledger.jsonl").summary()["mechanisms"]
    assert (train["done_steps"], histogram["done_steps"], histogram["stage"]) == (5, 1, "histogram")
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    assert sum("content" in line for line in lines) == 1, lines
    assert len(readers(place)) == NUM_PARTS
    assert not [*place.rglob(EMBEDDED)], "no text and no vector is left"
    return tuple((place / name).read_bytes() for name in ("train/marginals.json", "train/codebook.jsonl", "out.jsonl"))


def readers(place: Path) -> list[str]:
    """Which task has read each private part."""
    written = [line.split() for line in (place / "written").read_text().splitlines()]
    return [rank for rank, folder in written if folder == EMBEDDED]

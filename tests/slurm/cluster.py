"""A SLURM of one node, in a temporary folder, for as long as the tests need it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONF = """\
ClusterName=doppel
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for as long as a credential lasts.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=5
KillWait=5
MinJobAge=3600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={num_cpus} RealMemory=262144 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=urgent Nodes={host} PriorityTier=2 PreemptMode=OFF
PartitionName=brief Nodes={host} PriorityTier=1 MaxTime=60
"""


def why_not() -> str | None:
    """What keeps a cluster from starting here; None where nothing does."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: tests/slurm/install.sh installs SLURM and munge on Debian"
    if os.geteuid() != 0:
        return "SLURM's daemons are started as root"
    if "munge" not in (user.pw_name for user in pwd.getpwall()):
        return "there is no user munge"
    return None


class SlurmCluster:
    """munged, slurmctld and slurmd of their own, with key, socket, ports and state in a temporary folder.

    The node claims ``num_cpus`` processors, however many there are, so that two tasks fit beside others. A job of
    partition ``urgent`` preempts those of ``main``, which go back into the queue. ``stop`` ends what was started.

    Args:
        num_cpus: Processors that jobs may ask for.
    """

    def __init__(self, num_cpus: int = 4) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: a socket's path is bounded
        self.folder.chmod(0o755)
        self.num_cpus = num_cpus
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons and wait until the node takes jobs."""
        munge = self.folder / "munge"
        munge.mkdir()
        munge.chmod(0o755)  # whatever umask a command left to this process
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o400)
        for path in (munge, munge / "key"):
            shutil.chown(path, "munge", "munge")
        options = ("key-file=key", "socket=socket", "pid-file=pid", "log-file=log", "seed-file=seed")
        places = [f"--{option.replace('=', f'={munge}/')}" for option in options]
        self._spawn(["munged", "--foreground", *places], user="munge", group="munge", extra_groups=[])
        self._wait_for((munge / "socket").exists, "munged", 30)

        with socket.socket() as first, socket.socket() as second:
            for sock in (first, second):
                sock.bind(("127.0.0.1", 0))
            ports = [first.getsockname()[1], second.getsockname()[1]]
        host = socket.gethostname().split(".")[0]
        conf = CONF.format(folder=self.folder, host=host, ports=ports, num_cpus=self.num_cpus)
        (self.folder / "slurm.conf").write_text(conf)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self._spawn(["slurmctld", "-D", "-c"])
        self._spawn(["slurmd", "-D", "-c"])
        self._wait_for(lambda: self._sinfo().strip() == "idle", "slurmctld and slurmd", 60)

    def stop(self) -> None:
        """Cancel the jobs, end the daemons, remove the folder."""
        if len(self.daemons) == 3:
            subprocess.run(["scancel", "--user=root"], env=self.environment, capture_output=True, timeout=60)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and self.run("squeue", "--noheader", check=False).strip():
                time.sleep(0.5)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, check: bool = True, timeout: float = 300, **variables: str) -> str:
        """Standard output of a command that sees the cluster.

        Args:
            command: Program and arguments.
            check: Whether a failure is an error.
            timeout: Seconds.
            variables: Further environment variables.
        """
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment | variables, timeout=timeout
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def job(self, job_id: str) -> Mapping[str, str]:
        """What ``scontrol`` knows of a job: JobState, Restarts, ExitCode, Dependency, …"""
        line = self.run("scontrol", "show", "job", "--oneliner", job_id)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def wait(self, job_id: str, *states: str, timeout: float = 600) -> Mapping[str, str]:
        """Wait until a job is in one of the states; a job that ends in another one is an error."""
        deadline, ends = time.monotonic() + timeout, ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        while (job := self.job(job_id))["JobState"] not in states:
            assert job["JobState"] not in ends, f"job {job_id} is {job['JobState']}:\n{self.output(job)}"
            assert time.monotonic() < deadline, f"job {job_id} is {job['JobState']} still:\n{self.output(job)}"
            time.sleep(0.3)
        return job

    def output(self, job: Mapping[str, str]) -> str:
        """What a job has written so far."""
        path = Path(job.get("StdOut", ""))
        return path.read_text(errors="replace")[-3000:] if path.is_file() else "(no output)"

    def _sinfo(self) -> str:
        return self.run("sinfo", "--noheader", "--format=%T", "--partition=main", check=False, timeout=30)

    def _spawn(self, command: list[str], **options: object) -> None:
        with open(self.folder / f"{command[0]}.out", "wb") as output:
            self.daemons.append(
                subprocess.Popen(  # type: ignore[call-overload]
                    command, env=self.environment, stdout=output, stderr=output, start_new_session=True, **options
                )
            )

    def _wait_for(self, is_up: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_up():
            dead = any(daemon.poll() is not None for daemon in self.daemons)
            if dead or time.monotonic() > deadline:
                files = [path for pattern in ("*.out", "*.log") for path in self.folder.glob(pattern)]
                logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in files)
                raise RuntimeError(f"{what} did not start:\n{logs}")
            time.sleep(0.2)

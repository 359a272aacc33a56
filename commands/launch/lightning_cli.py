"""LightningCLI with Doppel's run folder."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.plugins.environments import ClusterEnvironment, SLURMEnvironment
from lightning.pytorch.trainer.states import TrainerFn

from callbacks.slurm_job import SlurmJob
from commands.launch.hardware import check_gpu
from commands.launch.parser import DoppelArgumentParser
from commands.launch.run_folder import claim, last_checkpoint, wandb_id
from doppel.errors import UserError
from lightning_modules.strategy import LogicalBatchDDPStrategy

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
PRIVACY = "callbacks.differential_privacy.DifferentialPrivacy"
WRITER = "callbacks.synthetic_writer.SyntheticWriter"
WANDB = "lightning.pytorch.loggers.WandbLogger"


# An advertisement for another package at every start.
logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(
    lambda record: "litlogger" not in record.getMessage()
)


class RunFolderConfig(SaveConfigCallback):
    """Writes the configuration into the run folder, one file per subcommand: config.yaml of fit, predict.yaml, …"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "overwrite": True})

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Save before anything runs."""
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = Path(trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / ("config.yaml" if stage == "fit" else f"{TrainerFn(stage).value}.yaml")
            self.parser.save(self.config, path, skip_none=False, overwrite=True, multifile=False)


class DoppelCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` with one extra option, ``--run_dir PIPELINE/STAGE``.

    The run folder decides where everything of a stage lies: configuration, checkpoints and W&B files in it, the
    ledger beside it in PIPELINE. W&B runs are grouped by pipeline and named by stage; whoever goes on in a run folder
    goes on with its W&B run.
    """

    def __init__(self, trainer_class: type[Trainer] = Trainer) -> None:
        super().__init__(
            model_class=LightningModule,
            datamodule_class=LightningDataModule,
            trainer_class=trainer_class,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=RunFolderConfig,
            parser_kwargs={"default_env": False},
            parser_class=DoppelArgumentParser,
            auto_configure_optimizers=False,
            seed_everything_default=1,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The run folder."""
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="folder of this stage, PIPELINE/STAGE; the ledger is PIPELINE/ledger.jsonl. $VARIABLE is filled in",
        )

    def instantiate_classes(self) -> None:
        """Build what the configuration describes.

        Raises:
            UserError: A class does not accept its values.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            if isinstance(error.__cause__, UserError):  # ours, wrapped by jsonargparse
                raise error.__cause__ from error
            lines = str(error).splitlines()
            reasons = [line.strip(" -") for line in lines if line.startswith("  - ")] or lines
            raise UserError(f"the configuration does not build: {reasons[0]}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A trainer that leaves requeueing to :class:`~callbacks.preemption.Preemption`.

        Lightning's own handler saves wherever the signal finds the process: between noise and count, for instance.
        """
        plugins = self._get(self.config_init, "trainer", default={}).get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        if SLURMEnvironment.detect() and not any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
            kwargs.setdefault("plugins", [*plugins, SLURMEnvironment(auto_requeue=False)])
        return super().instantiate_trainer(**kwargs)

    def before_instantiate_classes(self) -> None:
        """Fill in what follows from the run folder and the hardware."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        trainer = config.trainer
        check_gpu(str(trainer.precision or ""))
        if trainer.gradient_clip_val or trainer.accumulate_grad_batches != 1:
            raise UserError(
                "trainer.gradient_clip_val and trainer.accumulate_grad_batches have no place where a logical batch "
                "is one step: remove them, and use data.init_args.batch_size and the callback's max_grad_norm"
            )
        if trainer.strategy in ("auto", "ddp") and (trainer.num_nodes > 1 or _num_devices(trainer.devices) > 1):
            trainer.strategy = LogicalBatchDDPStrategy.strategy_name
        if config.run_dir is None:
            return
        run_dir = Path(os.path.expandvars(config.run_dir))
        run_dir.mkdir(parents=True, exist_ok=True)
        job = SlurmJob.current()
        if job is not None:
            claim(run_dir, job)
        if config.get("ckpt_path") == "last":
            config.ckpt_path = last_checkpoint(run_dir)
        trainer.default_root_dir = str(run_dir)
        loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
        for logger in loggers:
            if getattr(logger, "class_path", None) == WANDB:
                logger.init_args.save_dir = str(run_dir)
                logger.init_args.name = logger.init_args.name or run_dir.name
                sweep_run = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
                logger.init_args.id = logger.init_args.id or sweep_run or wandb_id(run_dir, job)
                names = {"group": run_dir.parent.name, "job_type": run_dir.name, "resume": "allow"}
                logger["dict_kwargs"] = names | dict(logger.get("dict_kwargs") or {})
        for callback in trainer.callbacks or []:
            path, init = callback.class_path, callback.init_args
            if path == CHECKPOINT and init.dirpath is None:
                init.dirpath = str(run_dir / "checkpoints")
            elif path == PRIVACY:
                init.ledger_path = init.ledger_path or str(run_dir.parent / "ledger.jsonl")
                init.stage = init.stage or run_dir.name


def _num_devices(devices: Any) -> int:
    if isinstance(devices, list):
        return len(devices)
    if str(devices) == "auto":
        return max(torch.cuda.device_count(), 1)
    return (
        max(int(devices), 1) if str(devices).lstrip("-").isdigit() and int(devices) >= 0 else torch.cuda.device_count()
    )


def fit(argv: list[str]) -> None:
    """Train a model on data: Lightning's `fit`."""
    _run("fit", argv)


def validate(argv: list[str]) -> None:
    """Evaluate a checkpoint on validation data: Lightning's `validate`."""
    _run("validate", argv)


def test(argv: list[str]) -> None:
    """Evaluate a checkpoint on test data: Lightning's `test`."""
    _run("test", argv)


def predict(argv: list[str]) -> None:
    """Write samples of a checkpoint: Lightning's `predict`."""
    _run("predict", argv)


def _run(command: str, argv: list[str]) -> None:
    sys.argv = [sys.argv[0], command, *argv]  # Lightning re-runs this command line on the other ranks
    DoppelCLI()

"""LightningCLI with Doppel's run folder and the key ``privacy``."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden

from callbacks.closed_loggers import close_figures
from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.progress_lines import ProgressInPlace, ProgressLines
from callbacks.slurm_job import SlurmJob
from callbacks.wandb_artifacts import never_fatal
from callbacks.wandb_offline import may_be_offline
from commands.lightning.arguments import PRIVACY, DoppelArgumentParser, listed_privacy, no_prompts
from commands.lightning.cluster import cluster_environment, settle_strategy
from commands.lightning.hardware import check_hardware, mixing_size, settled_precision, uses_cpu, what_auto_saves
from commands.lightning.kept import CHECKPOINT, listed, refuse_unkept, with_needed
from commands.lightning.own_code import place
from commands.lightning.prompts import check_prompts
from commands.lightning.stage_folder import claim, last_checkpoint, refuse_to_begin_again, wandb_id
from commands.lightning.wandb_run import about_run
from commands.run_folder.manifest_writer import refuse_lost_ledger
from commands.run_folder.ownership import hold, ledger_of_run
from commands.run_folder.places import absolute
from commands.run_folder.private_files import learnt_from, of_runs
from datamodules.data_module import TrainingDataModule
from datamodules.guards.overlap import Source
from datamodules.private_data import is_disclosable
from doppel.allocator import keep_freed_memory
from doppel.console.command import HelpFormatter, command_help
from doppel.errors import UserError
from doppel.privacy.checkpoint import read_checkpoint
from doppel.privacy.spec import PrivacyArguments
from doppel.run_folder import run_of
from doppel.settings.facts import Fact

PREEMPTION = "callbacks.preemption.Preemption"
WRITER = "callbacks.synthetic_writer.SyntheticWriter"
WANDB = "lightning.pytorch.loggers.WandbLogger"
#: What Weights & Biases is told not to keep of private data, for it follows the texts that are drawn; its own variables
#: (WANDB_CONSOLE, WANDB_X_DISABLE_STATS) ask for it all the same.
QUIET = {"console": "off", "x_disable_stats": True}
_HERE = "."
_LAST = "last"
DEFAULTS = Path(__file__).parents[2] / "configs" / "trainer.yaml"


class RunFolderConfig(SaveConfigCallback):
    """Writes the configuration into the run folder, one file per subcommand: config.yaml of fit, predict.yaml, …

    It is the configuration as it was given: what follows from the run folder is left open, so that the file starts the
    same training in another folder.

    Args:
        given: The configuration before anything was filled in.
    """

    def __init__(self, *args: Any, given: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "overwrite": True})
        self.config = given

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Save, unless it is that of a training: a checkpoint or a guarantee may still refuse it."""
        if stage != "fit":
            self._save(trainer, f"{TrainerFn(stage).value}.yaml")

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Save ahead of the first step, when nothing is refused any more: the file is that of what was trained."""
        self._save(trainer, "config.yaml")

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save that of a training that took no step, where there is none yet."""
        if not (Path(trainer.default_root_dir) / "config.yaml").is_file():
            self._save(trainer, "config.yaml")

    def _save(self, trainer: Trainer, name: str) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = Path(trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, folder / name, skip_none=False, overwrite=True, multifile=False)


class DoppelCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` with ``run_dir``, ``privacy`` and ``not_private``.

    The run folder decides where everything of a stage lies: configuration, checkpoints and W&B files in it, the ledger
    beside it, or the name of one that serves many runs (``privacy.ledger_path``, else ``$DOPPEL_LEDGER``). W&B runs are
    grouped by run and named by stage; a resumed stage goes on with its W&B run. Of data that are not public, W&B keeps
    neither console nor memory, unless ``trainer.logger.dict_kwargs.settings`` asks for them. With ``privacy`` the
    trainer gets a :class:`~callbacks.differential_privacy.DifferentialPrivacy` as its first callback; ``privacy: null``
    is the same training without a guarantee, on public data, or on private ones with ``not_private: true`` alone.

    Args:
        args: Command line that begins with the subcommand; ``sys.argv[1:]`` by default.
        trainer_class: Class of the trainer, whose methods are the subcommands.
        commands: The functions of subcommands, whose docstrings are their help.
    """

    def __init__(
        self,
        args: Sequence[str] | None = None,
        trainer_class: type[Trainer] = Trainer,
        commands: Iterable[Callable[..., Any]] = (),
    ) -> None:
        self._lock: FileLock | None = None
        told = {command.__name__: command_help(command) for command in commands}
        try:
            super().__init__(
                model_class=LightningModule,
                datamodule_class=LightningDataModule,
                trainer_class=trainer_class,
                subclass_mode_model=True,
                subclass_mode_data=True,
                save_config_callback=RunFolderConfig,
                parser_kwargs={
                    "default_env": False,
                    "formatter_class": HelpFormatter,
                    **{
                        name: {"default_config_files": [glob.escape(str(DEFAULTS))], **told.get(name, {})}
                        for name in self.subcommands()
                    },
                },
                parser_class=DoppelArgumentParser,
                auto_configure_optimizers=False,
                seed_everything_default=1,
                args=None if args is None else list(args),
            )
        finally:
            if self._lock is not None:
                self._lock.release()

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the run folder, the guarantee, and ``auto`` for the precision, which Lightning does not know."""
        groups: Any = parser.groups
        groups["model"].title, groups["data"].title = "What is trained", "What it is trained on"
        precision: Any = next(action for action in parser._actions if action.dest == "trainer.precision")
        precision._typehint = Literal["auto"] | precision._typehint
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="Folder of this stage, RUN/STAGE; the ledger is RUN/ledger.jsonl. $VARIABLE is filled in. Left out, a "
            "fit goes to runs/FILE/fit, where FILE is that of the model's class.",
        )
        parser.add_argument(
            "--privacy",
            type=PrivacyArguments | None,
            default=None,
            help="DP-SGD, such as --privacy.target_epsilon=3; --privacy=null trains without a guarantee.",
        )
        parser.add_argument(
            "--not_private",
            type=bool,
            default=False,
            help="Train without a guarantee on data that are not declared public (is_public).",
        )
        parser.add_argument(
            "--save_every",
            type=float | None,
            default=None,
            help="Minutes between checkpoints within an epoch; 0: after each step; left out: 1, of a large model 10.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; a logger that wants a ``save_dir`` and has none gets the run folder."""
        args = sys.argv[1:] if args is None else args
        try:
            self.config = parser.parse_args(args)
        except UserError as error:
            if "save_dir" not in str(error):
                raise
            self.config = parser.parse_args([*args, f"--trainer.logger.init_args.save_dir={_HERE}"])

    def _set_seed(self) -> None:
        """Seed all generators, but those of the noise.

        Raises:
            UserError: NumPy takes no such seed.
        """
        seed = self._get(self.config, "seed_everything")
        if not 0 <= int(seed or 0) < 2**32:
            raise UserError(f"seed_everything is {seed}: give a number from 0 to {2**32 - 1}")
        super()._set_seed()

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
            raise UserError(f"the configuration does not build: {reasons[0]}", about=place(error)) from error
        if isinstance(self.datamodule, TrainingDataModule) and self.subcommand in ("validate", "test"):
            self.datamodule.also_private = self._learnt_from()
        if isinstance(self.datamodule, TrainingDataModule) and self._get(self.config_init, "privacy"):
            start = self._get(self.config, "model.init_args.init_weights")
            self.datamodule.also_public = list(learnt_from("model.init_weights", start))

    def _learnt_from(self) -> list[Source]:
        """The private files of the runs of the checkpoint that is read, and of this folder."""
        checkpoint, run_dir = self._get(self.config_init, "ckpt_path"), self._get(self.config_init, "run_dir")
        stages = [Path(checkpoint).resolve().parents[1]] if checkpoint and Path(checkpoint).is_file() else []
        stages += [Path(os.path.expandvars(run_dir))] if run_dir else []
        return of_runs(*stages)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with the guarantee that is asked for."""
        if self.subcommand == "predict" and not is_overridden(
            "predict_dataloader", self.datamodule, LightningDataModule
        ):
            raise UserError(no_prompts(f"a {type(self.datamodule).__name__}, which is for trainings, but nothing"))
        if self.subcommand == "predict":
            check_prompts(self.model, self.datamodule, self._learnt_from)
        given = self._get(self.config_init, "trainer", default={})
        plugins = listed(given.get("plugins"))
        if not any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
            found = cluster_environment(given.get("devices"), int(given.get("num_nodes") or 1))
            kwargs |= {"plugins": [*plugins, found]} if found is not None else {}
        privacy = self._get(self.config_init, "privacy")
        callbacks = listed(given.get("callbacks"))
        if privacy is not None:
            callbacks = [DifferentialPrivacy(privacy), *callbacks]
        is_public = getattr(self.datamodule, "is_public", False) or self._get(self.config_init, "not_private")
        is_closed = privacy is None and not is_public
        if is_closed and self.trains:
            raise UserError(
                "this training has no privacy, and its data are not declared public: give --privacy.target_epsilon "
                "(a later --config may have taken privacy away), or data.init_args.is_public: true if anybody may see "
                "them, or --not_private=true to train without a guarantee"
            )
        if given.get("enable_progress_bar") is not False:
            others = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
            if not sys.stderr.isatty() or self._passes_over_private():
                callbacks = [*others, ProgressLines()]
            elif self.trains or self.subcommand == "predict":
                callbacks = [*others, ProgressInPlace()]
        for logger in listed(given.get("logger")):
            if isinstance(logger, Logger):
                never_fatal(logger)
            if isinstance(logger, WandbLogger):  # Lightning passes on null, which W&B warns of
                may_be_offline(logger)
                logger._wandb_init.pop("anonymous", None)
                if privacy is not None or not getattr(self.datamodule, "is_public", False):
                    quiet = {key: value for key, value in QUIET.items() if f"WANDB_{key.upper()}" not in os.environ}
                    logger._wandb_init["settings"] = quiet | dict(logger._wandb_init.get("settings") or {})
        trainer = super().instantiate_trainer(**{"callbacks": callbacks, **kwargs})
        if is_closed and self.subcommand != "predict":
            close_figures(trainer, self.model, self.datamodule, str(self.subcommand))
        return trainer

    def _passes_over_private(self) -> bool:
        """Whether it goes through private rows one after the other, whose number a progress bar would show.

        A training does not: its bar counts steps. A pass over its private validation file does.
        """
        data = self.datamodule
        if self.subcommand == "predict":
            return not is_disclosable(data)
        if self._get(self.config_init, "not_private"):
            return False
        name = "test" if self.subcommand == "test" else "val"
        is_public = getattr(data, f"{name}_is_public", getattr(data, "is_public", False))
        has_rows = any(getattr(data, key, None) is not None for key in (f"{name}_path", name))
        return not is_public and (not self.trains or has_rows)

    @property
    def is_in_run(self) -> bool:
        """Whether it is a step of a run, whose later steps read what it leaves."""
        return "DOPPEL_RUN" in os.environ

    @property
    def trains(self) -> bool:
        """Whether the command takes training steps."""
        return self.subcommand not in ("validate", "test", "predict")

    def before_instantiate_classes(self) -> None:
        """Refuse what cannot work; fill in what follows from the run folder and the hardware."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        trainer = config.trainer
        self.refuse_settings(config)
        if self.trains and uses_cpu(str(trainer.accelerator)):
            keep_freed_memory()
        asks = self.trains and config.privacy is not None and getattr(rank_zero_only, "rank", 0) == 0
        if asks and (words := what_auto_saves(str(trainer.accelerator), str(trainer.precision))) is not None:
            rank_zero_info(words)
        self.save_config_kwargs = {"given": config.clone()}
        _find_bases(getattr(config, "model", None))
        settle_strategy(trainer, config.model)
        if self.subcommand == "fit" and config.run_dir is None and _is_nowhere(config):
            config.run_dir = f"runs/{_file_of(config.model)}/fit"
            rank_zero_info(f"no --run_dir is given: everything goes to {config.run_dir}")
        if config.run_dir is not None:
            self._fill(config, Path(os.path.expandvars(config.run_dir)))
        checkpoint = config.get("ckpt_path")
        if checkpoint and checkpoint != _LAST:
            if not Path(checkpoint).is_file():
                raise UserError(
                    f"ckpt_path: there is no checkpoint {checkpoint}; a stage writes STAGE/checkpoints/last.ckpt, "
                    f"which {_LAST} stands for"
                )
            if "state_dict" not in read_checkpoint(Path(checkpoint)):  # which says it better than Lightning
                raise UserError(
                    f"ckpt_path: {checkpoint} is no checkpoint of a training: give STAGE/checkpoints/last.ckpt"
                )

    def refuse_settings(self, config: Any, is_here: bool = True) -> None:
        """Refuse what cannot work, and settle the precision by the hardware, if it is this machine's.

        Raises:
            UserError: Settings exclude one another, or the machine lacks what they ask for.
        """
        trainer = config.trainer
        if any(callback.class_path == PRIVACY for callback in listed(trainer.callbacks)):
            raise UserError(listed_privacy())
        if self.subcommand == "fit":
            if config.privacy is not None or self.is_in_run:
                refuse_unkept(trainer)
            if config.privacy is not None and (trainer.max_epochs is None or trainer.max_epochs < 1):
                raise UserError(
                    f"trainer.max_epochs is {'null' if trainer.max_epochs is None else trainer.max_epochs}: give the "
                    "number of epochs, for which the noise is planned (1000 for a training that was begun with null)"
                )
            if trainer.enable_checkpointing is not False:
                trainer.callbacks = with_needed(trainer.callbacks, self._parser("fit").get_defaults().trainer.callbacks)
        if is_here:
            accelerator, precision = str(trainer.accelerator), str(trainer.precision or "32-true")
            check_hardware(accelerator, precision)
            is_open = precision == "auto" and uses_cpu(accelerator)
            mixing = mixing_size(config.model, config.get("privacy")) if is_open else None
            trainer.precision = settled_precision(accelerator, precision, mixing)
        elif trainer.precision == "auto":
            trainer.precision = "32-true"
        if trainer.gradient_clip_val or trainer.accumulate_grad_batches != 1:
            raise UserError(
                "trainer.gradient_clip_val and trainer.accumulate_grad_batches have no place where a logical batch "
                "is one step: remove them, and use data.init_args.batch_size and privacy.max_grad_norm"
            )
        if config.save_every is not None and config.save_every < 0:
            raise UserError(f"save_every is {config.save_every}: give minutes, or 0 for each step")
        if config.privacy is not None and config.not_private and self.trains:
            raise UserError("privacy and not_private are both set: remove not_private, or set privacy: null")

    def _fill(self, config: Any, run_dir: Path) -> None:
        """Fill in what follows from the run folder."""
        trainer = config.trainer
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"run_dir {run_dir} cannot be made ({error.strerror}): give another folder") from error
        job = SlurmJob.current()
        if job is not None:
            claim(run_dir, job)
        if self.trains and getattr(rank_zero_only, "rank", 0) == 0:  # type: ignore[attr-defined]
            self._lock = hold(run_dir)
        if config.get("ckpt_path") == _LAST:
            is_free = self.subcommand == "fit" and config.privacy is None
            config.ckpt_path = last_checkpoint(run_dir, may_begin_anew=is_free)
        elif self.subcommand == "fit" and not config.get("ckpt_path") and not trainer.fast_dev_run:
            refuse_to_begin_again(run_dir, config.privacy is not None)
        trainer.default_root_dir = str(run_dir)
        for logger in listed(trainer.logger):
            init: Any = getattr(logger, "init_args", {})
            if "save_dir" in init:
                init.save_dir = str(run_dir) if init.save_dir in (None, _HERE) else init.save_dir
            if getattr(logger, "class_path", None) == WANDB:
                init.save_dir = str(run_dir)
                run = run_of(run_dir).absolute()
                init.name = init.name or "-".join(run_dir.absolute().relative_to(run).parts)
                sweep_run = os.environ.get("WANDB_RUN_ID") if "WANDB_SWEEP_ID" in os.environ else None
                init.id = init.id or sweep_run or wandb_id(run_dir, job)
                logger["dict_kwargs"] = about_run(config, run_dir) | dict(logger.get("dict_kwargs") or {})
        for callback in listed(trainer.callbacks):
            if callback.class_path == PREEMPTION and config.save_every is not None:
                callback.init_args.every_n_minutes = config.save_every
            if callback.class_path == CHECKPOINT and callback.init_args.dirpath is None:
                callback.init_args.dirpath = str(run_dir / "checkpoints")
        if config.privacy is not None:
            if self.trains:
                refuse_lost_ledger(run_of(run_dir))
            config.privacy.ledger_path = ledger_of_run(run_dir, config.privacy.ledger_path)
            config.privacy.stage = config.privacy.stage or run_dir.name


def _find_bases(model: Any) -> None:
    """Make folders of base models absolute, which the shipped configurations name from the project's folder."""
    given = getattr(model, "init_args", None) or {}
    for own, name in ((given, "base_model"), *((given.get("encoder") or {}, name) for name in ("name", "tokenizer"))):
        if own.get(name):
            own[name] = absolute(own[name], Fact(path=True))


def _is_nowhere(config: Any) -> bool:
    """Whether nothing says where the files of a training go."""
    is_placed = config.trainer.default_root_dir or config.trainer.fast_dev_run
    return not is_placed and (config.privacy is None or config.privacy.ledger_path is None)


def _file_of(model: Any) -> str:
    """The file of a model's class, without its folder: ``mine`` for ``mine.Model``."""
    return str(model.class_path).split(".")[-2]

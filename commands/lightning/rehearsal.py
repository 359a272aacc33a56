"""Trainings and samplings rehearsed: parsed and built as they will be, but for weights, and not run."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from callbacks.requirements import check_optimizer, refusals_of_bands, refusals_of_settings
from commands.lightning.cli import DoppelCLI
from commands.lightning.cluster import settle_strategy
from commands.lightning.own_code import check_own, find_here
from doppel.errors import UserError


class _Unloaded(NamedTuple):
    """In place of a module: its class, with the arguments that it would be built with."""

    kind: type
    arguments: dict[str, Any]


class _Rehearsal(DoppelCLI):
    """Builds data module, callbacks, trainer and the arguments of the model, and looks at what a private run refuses.

    Nothing is read but configurations, nothing is written, and no weight is loaded.

    Args:
        args: Command line that begins with the subcommand.
        is_here: Whether it will run on this machine: else devices, and how they work together, are left open.
    """

    _parsers: dict[str, Any] = {}  # building them takes as long as parsing

    def __init__(self, args: Sequence[str], is_here: bool) -> None:
        self._is_here = is_here
        super().__init__(args)

    def setup_parser(self, *args: Any, **kwargs: Any) -> None:
        """Set up the parsers, once in a process."""
        if not self._parsers:
            super().setup_parser(*args, **kwargs)
            names = ("parser", "_subcommand_parsers", "_subcommand_method_arguments")
            self._parsers.update({name: vars(self)[name] for name in names})
        vars(self).update(self._parsers)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return what steps of a run call; building the parser of each takes time."""
        return {name: skipped for name, skipped in DoppelCLI.subcommands().items() if name in ("fit", "predict")}

    @property
    def is_in_run(self) -> bool:
        """It will be a step of a run."""
        return True

    def _parse_ckpt_path(self) -> None:
        """A checkpoint may still be to be made."""

    def _set_seed(self) -> None:
        """Nothing is drawn."""

    def _add_instantiators(self) -> None:
        self.parser.add_instantiator(_leave_unloaded, LightningModule, subclasses=True)
        self.parser.add_instantiator(_build, LightningDataModule, subclasses=True)

    def before_instantiate_classes(self) -> None:
        """Refuse what cannot work; leave out what writes."""
        config = self.config[self.subcommand]
        self.refuse_settings(config, self._is_here)
        config.trainer.logger = False
        settle_strategy(config.trainer, config.model)
        if not self._is_here:
            vars(config.trainer).update(accelerator="cpu", devices=1, num_nodes=1, strategy="auto")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer as it will be, and the optimiser of a single weight.

        Raises:
            UserError: A value is out of its range, or a private run refuses it.
        """
        given: dict[str, Any] = {**self._get(self.config_init, "trainer"), **kwargs}
        given |= {"plugins": given.get("plugins") if self._is_here else None, "enable_model_summary": False}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The `srun` command")  # which jobs use, and nothing here needs
                trainer = Trainer(**given)
            built = _try_optimizer(self.model)
        except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"the configuration does not build: {' '.join(str(error).split())[:500]}") from error
        privacy = self._get(self.config_init, "privacy")
        reasons = []
        if privacy is not None and self.trains:
            is_lora = self.model.arguments.get("lora") is not None
            reasons = refusals_of_settings(trainer, self.datamodule, is_lora)
            reasons += refusals_of_bands(trainer, built) if privacy.bands != 1 else []
        if reasons:
            raise UserError("a private run refuses this configuration: " + "; ".join(reasons))
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing runs."""


def rehearse(words: Sequence[str], is_here: bool) -> None:
    """Parse the words of a training or a sampling, and build what they describe.

    Args:
        words: ``fit`` or ``predict``, then options.
        is_here: Whether it will run on this machine.

    Raises:
        UserError: The command would refuse them, before it has computed anything.
    """
    argv, told = sys.argv, logging.getLogger("lightning.pytorch").level
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        find_here()
        check_own(words[1:])
        sys.argv = ["cli.py", *words]  # where an error looks for the file with the wrong key
        _Rehearsal(words, is_here)
    finally:
        sys.argv = argv
        logging.getLogger("lightning.pytorch").setLevel(told)


def _leave_unloaded(kind: Any, *args: Any, **arguments: Any) -> Any:
    if hasattr(kind, "check"):
        kind.check(**arguments)
    return _Unloaded(kind, arguments)


def _build(kind: type, *args: Any, **arguments: Any) -> Any:
    return kind(*args, **arguments)


def _try_optimizer(model: Any) -> list[torch.optim.Optimizer]:
    """Build the optimiser and the schedule that a model is given, where it is, for one weight, and take a dry step."""
    optimizer, scheduler = (model.arguments.get(name) for name in ("optimizer", "lr_scheduler"))
    if not callable(optimizer):
        return []
    weight = torch.nn.Parameter(torch.zeros(1))
    built = optimizer([weight])
    schedule = scheduler(built) if callable(scheduler) else None
    check_optimizer(built, schedule)
    weight.grad = torch.ones(1)
    built.step()
    if schedule is not None:
        schedule.step()
    return [built]

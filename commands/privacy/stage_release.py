"""What is released of private turns: declared in a ledger, and in the budget that their stage announced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.run_folder.run_folder import RunFolder
from commands.run_folder.sections import of_system
from commands.run_folder.stage_config import StageConfig
from datamodules.guards.overlap import refuse_private
from datamodules.reading.example import Example
from datamodules.training_rows import TrainingRows, first_units
from doppel.console.ledger import FILE_NAME
from doppel.console.say import say
from doppel.errors import UserError
from doppel.privacy.ledger import BudgetExceededError, Ledger
from doppel.privacy.release import GaussianRelease, declare, once
from doppel.privacy.spec import PrivacyArguments
from doppel.run_folder import run_of
from doppel.text.unexpected import NoisyWords


@dataclass(frozen=True)
class StageRelease:
    """One release of the private turns of a trained stage: which turns, whose, with which noise, and who pays.

    Formal guarantees:
        The release is one mechanism with q = 1 in the scope of the stage, whose own noise was calibrated for both
        together. Its numbers leave this process in the very line of the ledger that pays for them. Without noise there
        is no guarantee, and the ledger says so.

    Attributes:
        turns: Private turns that the stage was trained on.
        unit: What is protected.
        num_units: N.
        sigma: Noise over sensitivity; None where it is exact.
        ledger: What pays; None where nothing is paid.
        mechanism: Its id there.
        scope: Its budget there.
        name: What is released, in words.
    """

    turns: list[Example]
    unit: str
    num_units: int
    sigma: float | None
    ledger: Ledger | None
    mechanism: str
    scope: str = ""
    name: str = ""

    @classmethod
    def declare(
        cls,
        stage_dir: Path,
        name: str,
        exact: bool,
        stage: str,
        kind: type[GaussianRelease],
        config: StageConfig | None = None,
    ) -> StageRelease:
        """Read the turns of a stage, and declare their release in its ledger; spends nothing.

        Args:
            stage_dir: Folder of the trained stage.
            name: What is released, in words.
            exact: Without noise: NOT PRIVATE.
            stage: What the ledger calls the release.
            kind: What is released.
            config: Data and budget of a stage that trains nothing; by default those that the folder tells.

        Raises:
            UserError: The stage announced no release, or one with noise where none is asked for.
        """
        config = config or StageConfig.read(stage_dir)
        data, privacy, rows = config.data, config.privacy, TrainingRows.from_config(config.data)
        key = "words_noise_multiplier" if kind is NoisyWords else "histogram_noise_multiplier"
        announced = privacy is not None and (
            getattr(privacy, key) is not None or (kind is not NoisyWords and privacy.histogram_share is not None)
        )
        if exact and announced:
            raise UserError(
                f"{stage_dir} was trained with room for a noised release: leave --exact out, or train it again with "
                "histogram_noise_multiplier: null"
            )
        if not exact and not announced:
            way = "" if kind is NoisyWords else ", or ask for --exact, which is not private"
            raise UserError(f"{stage_dir} announced no release: set privacy.{key} and train it again{way}")
        read = read_private(data if announced else {**data, "limit_train_units": None})
        turns = first_units(read, data.get("limit_train_units"))
        num_units = len({turn.unit for turn in turns})
        if privacy is None:
            return cls(turns, str(rows.unit), num_units, None, None, "")
        ledger = _ledger(stage_dir, privacy)
        sigma = privacy.words_noise(num_units) if kind is NoisyWords else privacy.histogram_noise(num_units)
        if sigma is None:
            ledger.caveat(privacy.scope, f"the exact {name} was released, which has no privacy guarantee", voids=True)
            return cls(turns, str(rows.unit), num_units, None, None, "")
        plan = privacy.plan_release(kind.kind, num_units, str(rows.unit), sigma)
        total = _total(stage_dir, privacy)
        mechanism = declare(
            ledger, privacy.scope, stage, plan, rows.fingerprint, total_epsilon=total, data_file=rows.data_file
        )
        return cls(turns, str(rows.unit), num_units, sigma, ledger, mechanism, privacy.scope, name)

    def once(self, numbers: Callable[[], Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return what was released, or draw it and pay for it (:func:`~doppel.privacy.release.once`).

        One whose line a crash tore is left out, and so is one that a scope cannot pay any more.

        Args:
            numbers: Draws the numbers, with the noise of this release.

        Returns:
            None where it is left out: a caveat says so, and the run goes on without.

        Raises:
            BudgetExceededError: It alone costs more than its scope may spend.
        """
        if self.ledger is None:
            return {**self.terms, **numbers()}
        why = "was charged, and a crash tore its line in the ledger"
        try:
            content = once(self.ledger, self.mechanism, lambda: {**self.terms, **numbers()})
        except BudgetExceededError:
            if self.ledger.remaining(self.mechanism) or not self.ledger.spent(self.scope):
                raise
            content, why = None, "is not in the budget any more, for what crashes undid stays spent"
        if content is None:
            text = f"the release of {self.scope}, {self.name}, {why}: the run goes on without"
            self.ledger.caveat(self.scope, text, voids=False)
            say(f"warning: {text}")
        return content

    @property
    def terms(self) -> dict[str, Any]:
        """Of whom it is, and under which noise."""
        return {"unit": self.unit, "num_units": self.num_units, "noise_multiplier": self.sigma}


def has_released(stage_dir: Path) -> bool:
    """Return whether the ledger has a line of a stage's histogram: what it counts by is then never made anew."""
    privacy = StageConfig.read(stage_dir).privacy
    if privacy is None:
        return False
    ledger = _ledger(stage_dir, privacy)
    record = ledger.mechanisms.get(ledger.mechanism_id(privacy.scope, "histogram"))
    return record is not None and record.done_steps > 0


def _ledger(stage_dir: Path, privacy: PrivacyArguments) -> Ledger:
    own = run_of(stage_dir) / FILE_NAME
    return Ledger(own if own.exists() else privacy.ledger_path or own)


def _total(stage_dir: Path, privacy: PrivacyArguments) -> float | None:
    """What all budgets on the same data may cost together: as the run says it by now, for it may change.

    What a finished training has saved stays as it ran. If a release were held to that, a run that another one has
    overtaken could not go on, whatever total it was given.
    """
    experiment = RunFolder(run_of(stage_dir)).experiment
    if not experiment:
        return privacy.total_epsilon
    total = (of_system(experiment, privacy.scope).get("privacy") or {}).get("total_epsilon")
    return None if total is None else float(total)


def read_private(data: Mapping[str, Any], needs_label: bool = False) -> list[Example]:
    """Read the private rows.

    Args:
        data: Arguments of the data module.
        needs_label: Whether a file without labels is refused.

    Raises:
        UserError: They are to be the first units alone, for which no ε holds, or what hides their words learns of them.
    """
    if data.get("limit_train_units") is not None:
        raise UserError("no ε holds for the first units alone (data.limit_train_units): take keep_share")
    rows = TrainingRows.from_config(data)
    if rows.selection.redact is not None:
        refuse_private(rows.selection.redact.public_files, [(rows.path, rows.columns)])
    return rows.read(("label",) if needs_label else ())

"""What is released of the turns that a stage was trained on, in the budget that the stage announced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.runs.stage_config import StageConfig
from datamodules.canaries import first_units
from datamodules.turn import Turn
from doppel.errors import UserError
from doppel.privacy.accounting import GaussianRelease
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments


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
        ledger: What pays; None for a stage without privacy.
        mechanism: Its id there; None where nothing is paid.
    """

    turns: list[Turn]
    unit: str
    num_units: int
    sigma: float | None
    ledger: Ledger | None
    mechanism: str | None

    @classmethod
    def declare(
        cls, stage_dir: Path, name: str, exact: bool, stage: str, mechanism: type[GaussianRelease]
    ) -> StageRelease:
        """Read the turns of a stage, and declare their release in its ledger; spends nothing.

        Args:
            stage_dir: Folder of the trained stage.
            name: What is released, in words.
            exact: Without noise: NOT PRIVATE.
            stage: What the ledger calls the release.
            mechanism: What is released.

        Raises:
            UserError: The stage announced no release, or one with noise where none is asked for.
        """
        from datamodules.columns import Columns
        from datamodules.selection import Selection
        from datamodules.sources import expand_path
        from datamodules.tables import read_turns

        config = StageConfig.read(stage_dir)
        data, privacy = config.data, config.privacy
        announced = privacy is not None and not (
            privacy.histogram_noise_multiplier is None and privacy.histogram_share is None
        )
        if exact and announced:
            raise UserError(
                f"{stage_dir} was trained with room for a noised release: leave --exact out, or train it again with "
                "histogram_noise_multiplier: null"
            )
        if not exact and not announced:
            raise UserError(
                f"{stage_dir} announced no release: set privacy.histogram_noise_multiplier and train it again, or ask "
                "for --exact, which is not private"
            )
        if announced and data.get("limit_train_units") is not None:
            raise UserError(
                f"{stage_dir} was trained on its first units alone (limit_train_units), for which no ε holds: train it "
                "again with keep_share"
            )
        path = expand_path(data["train_path"])
        read = read_turns(path, data["unit"], columns=Columns.from_config(data))
        turns = Selection.from_config(data).apply(read, path, data["unit"])
        turns = first_units(turns, data.get("limit_train_units"))
        num_units = len({turn.unit for turn in turns})
        if privacy is None:
            return cls(turns, data["unit"], num_units, None, None, None)
        ledger, sigma, paid = ledger_of(stage_dir, privacy), privacy.histogram_noise(num_units), None
        if sigma is None:
            text = f"the exact {name} was released, which has no privacy guarantee"
            ledger.caveat(privacy.scope, text, voids=True)
        else:
            paid = ledger.open(
                scope=privacy.scope,
                stage=stage,
                spec=privacy.plan_histogram(num_units, data["unit"]),
                planned_steps=1,
                data_fingerprint=config.fingerprint(),
                kind=mechanism.kind,
            )
        return cls(turns, data["unit"], num_units, sigma, ledger, paid)

    def released(self) -> dict[str, Any] | None:
        """The numbers that the ledger holds of this release already; None where it has made none."""
        if self.ledger is None or self.mechanism is None:
            return None
        return next(
            (dict(own.content) for own in self.ledger.releases(self.mechanism) if own.content is not None), None
        )

    def refuse_if_too_much(self) -> None:
        """Refuse a release that its scope cannot pay, before the turns are read in vain.

        Raises:
            BudgetExceededError: It cannot; nothing was spent.
        """
        if self.ledger is not None and self.mechanism is not None and not self.ledger.remaining(self.mechanism):
            self.ledger.spend(self.mechanism)  # refuses and says why

    def spend(self, content: Mapping[str, Any]) -> None:
        """Write the release to the ledger, if one pays: who has not the line has not the numbers.

        Raises:
            BudgetExceededError: The scope cannot pay.
        """
        if self.ledger is not None and self.mechanism is not None:
            self.ledger.spend(self.mechanism, content)


def ledger_of(stage_dir: Path, privacy: PrivacyArguments) -> Ledger:
    """The ledger that pays for a stage: that of its run, else the one that its configuration names."""
    own = stage_dir.parent / "ledger.jsonl"
    return Ledger(own if own.exists() else privacy.ledger_path or own)

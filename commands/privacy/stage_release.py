"""What is released of the turns that a stage was trained on, in the budget that the stage announced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.pipeline.stage_config import StageConfig
from commands.privacy.sealed_release import SealedRelease
from datamodules.canaries import first_units
from datamodules.turn import Turn
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger


class StageRelease:
    """One release of the private turns of a trained stage: which turns, whose, with which noise, and who pays.

    Formal guarantees:
        The release is one mechanism with q = 1 in the scope of the stage, whose own noise was calibrated for both
        together. :meth:`spend` writes it to the ledger before anybody can read what was drawn; that it fits is found
        out before the turns are read by anything slow. Without noise there is no guarantee, and the ledger says so.

    Args:
        stage_dir: Folder of the trained stage.
        name: What is released, in words.
        exact: Without noise: NOT PRIVATE.
        stage: What the ledger calls the release.
        kind: What the ledger says that it is.

    Attributes:
        config: Of the stage.
        turns: Private turns that it was trained on.
        unit: What is protected.
        num_units: N.
        sigma: Noise over sensitivity; None where it is exact.
        ledger: What pays; None for a stage without privacy.
        mechanism: Its id there; None where nothing is paid.

    Raises:
        UserError: The stage announced no release, or one with noise where none is asked for.
        BudgetExceededError: The budget of the scope does not afford it any more.
    """

    def __init__(self, stage_dir: Path, name: str, exact: bool, stage: str, kind: str) -> None:
        from datamodules.columns import Columns
        from datamodules.selection import Selection
        from datamodules.sources import expand_path
        from datamodules.tables import read_turns

        self.config = config = StageConfig.read(stage_dir)
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
        self.unit: str = data["unit"]
        path = expand_path(data["train_path"])
        read = read_turns(path, data["unit"], columns=Columns.from_config(data))
        turns = Selection.from_config(data).apply(read, path, data["unit"])
        self.turns: list[Turn] = first_units(turns, data.get("limit_train_units"))
        self.num_units = len({turn.unit for turn in self.turns})
        self.sigma = None if privacy is None else privacy.histogram_noise(self.num_units)
        self.ledger: Ledger | None = None
        self.mechanism: str | None = None
        if privacy is None:
            return
        own = stage_dir.parent / "ledger.jsonl"
        self.ledger = Ledger(own if own.exists() else privacy.ledger_path or own)
        if self.sigma is None:
            text = f"the exact {name} was released, which has no privacy guarantee"
            self.ledger.add_caveat(privacy.scope, text, voids=True)
            return
        self.mechanism = self.ledger.open_mechanism(
            scope=privacy.scope,
            stage=stage,
            spec=privacy.plan_histogram(self.num_units, data["unit"]),
            planned_steps=1,
            data_fingerprint=config.fingerprint(),
            kind=kind,
        )

    def refuse_if_too_much(self) -> None:
        """Refuse a release that its scope cannot pay, before the turns are read in vain.

        Raises:
            BudgetExceededError: It cannot; nothing was spent.
        """
        if self.ledger is not None and self.mechanism is not None and not self.ledger.affordable(self.mechanism):
            self.ledger.spend(self.mechanism)  # refuses and says why

    def spend(self, sealed: SealedRelease | None = None, content: Mapping[str, Any] | None = None) -> None:
        """Write the release to the ledger, if one pays.

        Args:
            sealed: File for what is released; None: nothing has been drawn yet.
            content: What is released, which nobody can read before the ledger has paid.

        Raises:
            BudgetExceededError: The scope cannot pay.
        """
        if self.ledger is None or self.mechanism is None:
            return
        key = None
        if sealed is not None and content is not None:
            key = sealed.seal({"mechanism": self.mechanism, "content": content})
        self.ledger.spend(self.mechanism, key)

    def reopen(self, sealed: SealedRelease) -> dict[str, Any] | None:
        """What an interrupted process has sealed, if the ledger has paid for it; None else."""
        if self.ledger is None or self.mechanism is None or self.config.privacy is None:
            return None
        found = sealed.open(self.ledger.opens(self.config.privacy.scope))
        if found is None or found["mechanism"] != self.mechanism:
            return None
        content: dict[str, Any] = found["content"]
        return content

    def note(self, fingerprint: str) -> None:
        """Let the ledger keep a fingerprint of what was released."""
        if self.ledger is not None and self.mechanism is not None:
            self.ledger.note_weights(self.mechanism, 1, fingerprint)

"""The trainer of an audit: canaries in, `fit` as configured, lower bound and extraction report out."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from callbacks.differential_privacy import DifferentialPrivacy
from commands.privacy.audit_subjects import Subject, subject_of
from commands.run_folder.run_folder import AUDIT_SETTINGS
from datamodules.guards.canaries import Canary, read_canaries, write_canaries
from doppel.errors import UserError
from doppel.files import write_json_lines
from doppel.privacy.accounting import default_delta
from doppel.privacy.audit import AuditResult, audit_scores, largest_bound
from lightning_modules.training.logical_batch_module import LogicalBatchModule

log = logging.getLogger(__name__)

STAGE = "audit"
NO_CLAIM = "no claim to test"
CONSISTENT = "consistent with the claim"
CONTRADICTED = "contradicts the claim"
UNTESTED = "too weak to test the claim"


class AuditTrainer(Trainer):
    """A trainer with one more verb, ``audit``; everything else about the training is as configured."""

    #: The report, once ``audit`` has run.
    report: dict[str, Any]
    #: Digest of the settings that must not change when an audit goes on; set by the command line.
    settings: str = ""

    def audit(
        self,
        model: LogicalBatchModule,
        datamodule: Any,
        num_canaries: int = 200,
        canaries: str | None = None,
        num_samples: int = 500,
        confidence: float = 0.95,
        coin_seed: int | None = None,
        ckpt_path: None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Audit a training: hide canaries in a copy of its data, train as `fit`, and bound epsilon from below.

        The canaries whose loss fell most are guessed to have been in the data, those whose loss fell least to have been
        out; the share of right guesses gives the bound (:func:`doppel.privacy.audit.audit_scores`).

        Args:
            model: The model, untrained.
            datamodule: The data.
            num_canaries: Canaries to make up, from random words, or by the module's own ``canary()``. More of them
                sharpen the bound; keep them well below the number of units, which they add to.
            canaries: Your own canaries instead: JSON lines with "utterance" and, where the data have them, "parse"
                and "label".
            num_samples: Texts to sample for the extraction report, of a text model; 0 leaves it out.
            confidence: Probability that the bound holds.
            coin_seed: Fixed words and coins, for tests alone: the coins must be unknown to the training.
            ckpt_path: Must be null. An interrupted audit goes on from its own run folder.
            weights_only: Taken from configurations of `fit`, without effect.

        Raises:
            UserError: The configuration cannot be audited, the folder holds another run, or the training diverged.
        """
        folder = Path(self.default_root_dir)
        self._check(num_canaries, num_samples, confidence, ckpt_path)
        subject, device = subject_of(model, datamodule), self.strategy.root_device
        hidden = self._canaries(folder, subject, num_canaries, canaries, coin_seed)
        subject.hide(hidden, folder)
        last = folder / "checkpoints" / "last.ckpt"
        self.fit(model, datamodule=datamodule, ckpt_path=str(last) if last.is_file() else None)
        if not self.state.finished:
            raise UserError("the training was interrupted: run the same command again to go on")
        claim = self._claim()
        after = subject.losses([c.turn for c in hidden], device)
        delta = default_delta(datamodule.num_units) if claim is None else claim["delta"]
        result = bound(hidden, after, delta, confidence)
        extraction = subject.extraction(hidden, num_samples, folder, device) if num_samples else None
        self.report = {
            "model": type(model).__name__,
            "data": subject.name,
            "unit": datamodule.unit,
            "num_units": datamodule.num_units,
            "claim": claim,
            "verdict": verdict(result, claim),
            "largest_possible_bound": largest_bound(len(hidden), delta, confidence),
            "private/bound": asdict(result) | {"num_included": sum(c.included for c in hidden)},
            "private/extraction": extraction,
        }

    def _check(self, num_canaries: int, num_samples: int, confidence: float, ckpt_path: object) -> None:
        """Refuse what cannot be audited, before anything is written."""
        reasons = {
            "an audit runs on one device: set trainer.devices: 1 and trainer.num_nodes: 1": self.world_size > 1,
            "fast_dev_run trains too little to be audited: leave it out": bool(self.fast_dev_run),  # type: ignore[attr-defined]
            f"ckpt_path is {ckpt_path}: leave it out, an audit starts from the model's base_model": bool(ckpt_path),
            f"num_canaries is {num_canaries}: give at least 2, better some hundreds": num_canaries < 2,
            f"num_samples is {num_samples}: give 0 or more": num_samples < 0,
            f"confidence is {confidence}: give a number between 0 and 1, such as 0.95": not 0 < confidence < 1,
        }
        for message, is_wrong in reasons.items():
            if is_wrong:
                raise UserError(message)

    def _canaries(
        self,
        folder: Path,
        subject: Subject,
        num_canaries: int,
        path: str | None,
        seed: int | None,
    ) -> list[Canary]:
        """The canaries of this folder: tossed once, and found again when an audit goes on."""
        settings, kept = folder / AUDIT_SETTINGS, folder / "canaries.jsonl"
        wanted = {"settings": self.settings, "num_canaries": num_canaries, "canaries": path, "coin_seed": seed}
        if kept.is_file() and settings.is_file():
            if json.loads(settings.read_text(encoding="utf-8")) != wanted:
                raise UserError(
                    f"{folder} holds an audit with other settings: give the same ones to go on, or another --run_dir"
                )
            return read_canaries(kept)
        if (folder / "checkpoints").exists():
            raise UserError(f"{folder} holds another training: give the audit a folder of its own with --run_dir")
        if seed is not None:
            log.warning("coin_seed is set: the coins are predictable, and the bound proves nothing. For tests only.")
        rng = random.SystemRandom() if seed is None else random.Random(seed)
        made = subject.make(num_canaries, path, rng)
        before = subject.losses(made, self.strategy.root_device)
        tossed = [Canary(turn, rng.random() < 0.5, loss) for turn, loss in zip(made, before.tolist(), strict=True)]
        folder.mkdir(parents=True, exist_ok=True)
        write_canaries(tossed, kept)
        write_json_lines(settings, [wanted])
        return tossed

    def _claim(self) -> dict[str, Any] | None:
        """What the ledger of this training says, or None without the differential-privacy callback."""
        for callback in self.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, DifferentialPrivacy):
                assert callback.session is not None and callback.spec is not None
                names = ("noise_multiplier", "max_grad_norm", "sample_rate")
                stated = {name: getattr(callback.spec, name) for name in names}
                stated |= {"bands": callback.spec.bands} if callback.spec.bands > 1 else {}
                stated |= {"delta": callback.spec.budget.delta, "accountant": callback.spec.budget.accountant}
                scope, ledger = callback.privacy.scope, callback.session.ledger
                return {"epsilon": ledger.epsilon(scope), "voids": ledger.voids(scope), **stated}
        return None


def bound(canaries: Sequence[Canary], after: Tensor, delta: float, confidence: float) -> AuditResult:
    """Score each canary by how far its loss fell, and bound epsilon.

    Raises:
        UserError: The training diverged.
    """
    scores = torch.tensor([c.loss_before for c in canaries]) - after
    if not scores.isfinite().all():
        raise UserError(
            "the losses of the trained model are not finite: the training diverged, lower its learning rate"
        )
    return audit_scores(scores.tolist(), [c.included for c in canaries], delta, confidence)


def verdict(result: AuditResult, claim: dict[str, Any] | None) -> str:
    """Return `NO_CLAIM`, `CONTRADICTED`, `UNTESTED` or `CONSISTENT`."""
    if claim is None:
        return NO_CLAIM
    if result.contradicts(claim["epsilon"]):
        return CONTRADICTED
    could = largest_bound(result.num_canaries, result.delta, result.confidence) > claim["epsilon"]
    return CONSISTENT if could else UNTESTED

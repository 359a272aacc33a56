"""The trainer of an audit: canaries in, `fit` as configured, lower bound and extraction report out."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from tqdm import tqdm

from callbacks.differential_privacy import DifferentialPrivacy
from commands.privacy.extraction import extraction_report
from commands.runs.run_record import AUDIT_SETTINGS
from datamodules.batches.cut import cut, micro_batch
from datamodules.batches.encoded import encode_examples
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.canaries import (
    Canary,
    audit_turns,
    make_examples,
    read_canaries,
    read_canary_examples,
    write_canaries,
)
from datamodules.reading.columns import Columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.training_rows import first_units
from doppel.errors import UserError
from doppel.files import read_json_lines, write_json_lines
from doppel.privacy.accounting import default_delta
from doppel.privacy.audit import AuditResult, audit_scores, largest_bound
from lightning_modules.causal_lm import CausalLM
from lightning_modules.sampling import sample_texts

log = logging.getLogger(__name__)

STAGE = "audit"
NO_CLAIM = "no claim to test"
CONSISTENT = "consistent with the claim"
CONTRADICTED = "contradicts the claim"
UNTESTED = "too weak to test the claim"
_SAMPLING_BATCH = 64


class AuditTrainer(Trainer):
    """A trainer with one more verb, ``audit``; everything else about the training is as configured."""

    #: The report, once ``audit`` has run.
    report: dict[str, Any]
    #: Digest of the settings that must not change when an audit goes on; set by the command line.
    settings: str = ""

    def audit(
        self,
        model: CausalLM,
        datamodule: DialogueDataModule,
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
            num_canaries: Canaries to make up, from random words. More of them sharpen the bound; keep them well
                below the number of units, which they add to.
            canaries: Your own canaries instead: JSON lines with "utterance" and, where the data have them, "parse"
                and "label".
            num_samples: Texts to sample for the extraction report; 0 leaves it out.
            confidence: Probability that the bound holds.
            coin_seed: Fixed words and coins, for tests alone: the coins must be unknown to the training.
            ckpt_path: Must be null. An interrupted audit goes on from its own run folder.
            weights_only: Taken from configurations of `fit`, without effect.

        Raises:
            UserError: The configuration cannot be audited, the folder holds another run, or the training diverged.
        """
        folder = Path(self.default_root_dir)
        self._check(model, datamodule, num_canaries, num_samples, confidence, ckpt_path)
        turns = first_units(
            read_examples(
                datamodule.rows.path,
                datamodule.unit,
                columns=datamodule.rows.columns,
                unit_names=datamodule.rows.unit_names,
            ),
            datamodule.limit_train_units,
        )
        hidden = self._canaries(folder, model, turns, num_canaries, canaries, coin_seed)
        train_path, original = folder / "train.jsonl", datamodule.rows
        write_json_lines(train_path, map(asdict, audit_turns(turns, hidden, model.text_format)))
        datamodule.rows, datamodule.limit_train_units = replace(original, path=str(train_path), columns=Columns()), None
        last = folder / "checkpoints" / "last.ckpt"
        self.fit(model, datamodule=datamodule, ckpt_path=str(last) if last.is_file() else None)
        if not self.state.finished:
            raise UserError("the training was interrupted: run the same command again to go on")
        claim = self._claim()
        after = losses(model, [c.turn for c in hidden], self.strategy.root_device)
        delta = default_delta(datamodule.num_units) if claim is None else claim["delta"]
        result = bound(hidden, after, delta, confidence)
        extraction = None
        if num_samples:
            samples = self._samples(folder, model, hidden, turns, num_samples)
            extraction = extraction_report(samples, hidden, turns, model.text_format)
        self.report = {
            "model": type(model).__name__,
            "data": original.path,
            "unit": datamodule.unit,
            "num_units": datamodule.num_units,
            "claim": claim,
            "verdict": verdict(result, claim),
            "largest_possible_bound": largest_bound(len(hidden), delta, confidence),
            "private/bound": asdict(result) | {"num_included": sum(c.included for c in hidden)},
            "private/extraction": extraction,
        }

    def _check(
        self, model: object, data: object, num_canaries: int, num_samples: int, confidence: float, ckpt_path: object
    ) -> None:
        """Refuse what cannot be audited, before anything is written."""
        reasons = {
            "an audit runs on one device: set trainer.devices: 1 and trainer.num_nodes: 1": self.world_size > 1,
            "fast_dev_run trains too little to be audited: leave it out": bool(self.fast_dev_run),  # type: ignore[attr-defined]
            f"ckpt_path is {ckpt_path}: leave it out, an audit starts from the model's base_model": bool(ckpt_path),
            f"num_canaries is {num_canaries}: give at least 2, better some hundreds": num_canaries < 2,
            f"num_samples is {num_samples}: give 0 or more": num_samples < 0,
            f"confidence is {confidence}: give a number between 0 and 1, such as 0.95": not 0 < confidence < 1,
            f"{type(model).__name__} cannot be audited: use a CausalLM": not isinstance(model, CausalLM),
            f"{type(data).__name__} cannot be audited: use DialogueDataModule, whose data have privacy "
            "units": not isinstance(data, DialogueDataModule),
        }
        for message, is_wrong in reasons.items():
            if is_wrong:
                raise UserError(message)

    def _canaries(
        self,
        folder: Path,
        model: CausalLM,
        turns: Sequence[Example],
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
        made = (
            make_examples(num_canaries, turns, rng) if path is None else read_canary_examples(path, model.text_format)
        )
        before = losses(model, made, self.strategy.root_device)
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
                stated |= {"delta": callback.spec.budget.delta, "accountant": callback.spec.budget.accountant}
                scope, ledger = callback.privacy.scope, callback.session.ledger
                return {"epsilon": ledger.epsilon(scope), "voids": ledger.voids(scope), **stated}
        return None

    def _samples(
        self, folder: Path, model: CausalLM, canaries: Sequence[Canary], turns: Sequence[Example], num: int
    ) -> list[dict[str, Any]]:
        """Sampled texts with the canary that prompted each, if any; kept in the folder."""
        path = folder / "samples.jsonl"
        if path.is_file():
            samples = [sample for _, sample in read_json_lines(path)]
            if len(samples) == num:
                return samples
        source = model.text_format.source
        prompts: list[tuple[int | None, list[int]]] = [(None, model.text_format.encode_prompt(None))] * num
        if source is not None:
            rng = random.Random(0)
            own = [(i, c.turn) for i, c in enumerate(canaries)]
            rng.shuffle(own)
            asked: list[tuple[int | None, Example]] = list(own[: (num + 1) // 2])
            asked += [(None, turn) for turn in rng.choices(turns, k=num - len(asked))]
            ids = model.text_format.encode_prompts([getattr(turn, source) for _, turn in asked])
            prompts = [(i, ids_of) for (i, _), ids_of in zip(asked, ids, strict=True)]
            prompts.sort(key=lambda prompt: len(prompt[1]))
        samples = []
        model.to(self.strategy.root_device)
        with torch.no_grad(), tqdm(total=num, desc="sampling", unit="text") as progress:
            for start in range(0, num, _SAMPLING_BATCH):
                part = prompts[start : start + _SAMPLING_BATCH]
                stream = range(start, start + len(part))
                texts = sample_texts(
                    model.model, model.text_format, [ids for _, ids in part], model.sampling, stream=stream
                )
                samples += [{"canary": i, "text": text.text} for (i, _), text in zip(part, texts, strict=True)]
                progress.update(len(part))
        model.cpu()
        write_json_lines(path, samples)
        return samples


def losses(model: CausalLM, turns: Sequence[Example], device: torch.device) -> Tensor:
    """Return the loss of each turn's target as training sees it, float32 [turns]."""
    encoded = encode_examples(turns, model.text_format)
    result = torch.zeros(len(encoded))
    was_training = model.training
    model.to(device).eval()
    with torch.no_grad():
        for part in cut(encoded, [[row] for row in range(len(encoded))], max_tokens=4096):
            batch = micro_batch(encoded, part)
            for name in ("input_ids", "labels"):
                setattr(batch, name, getattr(batch, name).to(device))
            result[[row for (row,) in part]] = model.losses(batch).float().cpu()
    model.train(was_training).cpu()
    return result


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

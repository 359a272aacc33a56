"""How much an attacker learns from a training: canaries, a lower bound on epsilon, an extraction report."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from commands.lightning.cli import CHECKPOINT, WANDB, DoppelCLI
from commands.lightning.own_code import check_own, find_here
from commands.privacy.audit_trainer import CONTRADICTED, STAGE, UNTESTED, AuditTrainer
from doppel.console.table import Table
from doppel.errors import UserError
from doppel.files import write_json, write_text

NOTE = (
    "NOT PRIVATE: bound, guesses and copies depend on the data without noise. Besides, this training "
    "has spent a budget of its own, in the ledger of this folder; if anything of it is released, add that to what "
    "other runs on the same data have spent. Audit on public or embedded data where you can."
)

COPIES = {
    "exact_copies": "exact",
    "near_copies": "near",
    "exact_copies_long": "exact ≥5 words",
    "near_copies_long": "near ≥5 words",
}


class AuditCLI(DoppelCLI):
    """The command line of `fit` with the verb `audit`; everything that it writes lies in the run folder."""

    def __init__(self) -> None:
        super().__init__(trainer_class=AuditTrainer, commands=(audit,))

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the one subcommand."""
        return {STAGE: {"model", "datamodule"}}

    def before_instantiate_classes(self) -> None:
        """Turn a configuration of `fit`, also one that a run has saved, into one of this folder."""
        config = self.config[STAGE]
        if config.run_dir is None:
            raise UserError("an audit needs a folder for what it writes: give --run_dir RUN/audit")
        config.run_dir = os.path.expandvars(config.run_dir)
        trainer, run_dir = config.trainer, Path(config.run_dir)
        if trainer.devices == "auto":
            trainer.devices = 1
        for logger in trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]:
            if getattr(logger, "class_path", None) == WANDB:
                logger.init_args.name = logger.init_args.id = None
                logger["dict_kwargs"] = {}
        for callback in trainer.callbacks or []:
            if callback.class_path == CHECKPOINT:
                callback.init_args.dirpath = None
        if config.privacy is not None:
            config.privacy.ledger_path, config.privacy.stage = str(run_dir / "ledger.jsonl"), STAGE
        super().before_instantiate_classes()

    def before_audit(self) -> None:
        """Note what must not change when an interrupted audit goes on."""
        config = json.loads(self._parser(STAGE).dump(self.config[STAGE], format="json", skip_none=False))
        kept = {name: config["trainer"].get(name) for name in ("callbacks", "max_epochs", "max_steps", "precision")}
        kept |= {name: config.get(name) for name in ("model", "data", "seed_everything", "privacy")}
        digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
        self.trainer.settings = digest  # type: ignore[attr-defined]


def audit(argv: list[str]) -> int:
    """Train on a copy of the data with canaries and bound epsilon from below.

    Takes the configurations of a `fit`, private or not, or the config.yaml that one has saved. Each canary is hidden in
    a copy of the training data by the toss of a coin, the model is trained as by `fit`, and guesses of the coins from
    the trained model give a lower bound on epsilon (Steinke, Nasr, Jagielski 2023). Samples are searched for copies of
    canaries and of training text. A module of your own that defines canary() is audited on its UnitDataModule, without
    samples. Writes audit.json and audit.txt into the run folder; ends with status 1 if the bound is above the epsilon
    of the ledger. docs/sign-off.md says how to read the numbers.

    Example:
        python cli.py audit --config runs/quickstart/one_stage/one_stage/config.yaml --run_dir runs/quickstart/audit

    Args:
        argv: Arguments of the audit.

    Returns:
        Exit status: 1 where the bound contradicts the claim, else 0.
    """
    find_here()
    check_own(argv)
    sys.argv = [sys.argv[0], STAGE, *argv]
    cli = AuditCLI()
    report = {**cli.trainer.report, "note": NOTE}  # type: ignore[attr-defined]
    folder, text = Path(cli.trainer.default_root_dir), render(report)
    write_json(folder / "audit.json", report)
    write_text(folder / "audit.txt", text)
    sys.stdout.write(text)
    if report["verdict"] != CONTRADICTED:
        return 0
    sys.stderr.write(
        "error: the lower bound on epsilon is above what the ledger claims: the guarantee does not hold as "
        "implemented or configured. Do not release anything trained this way.\n"
    )
    return 1


def render(report: dict[str, Any]) -> str:
    """Render the report as text for people."""
    bound, claim = report["private/bound"], report["claim"]
    claimed = "none (privacy: null)"
    if claim is not None:
        claimed = (
            f"ε = {claim['epsilon']:.4g} at δ = {claim['delta']:.3g} ({claim['accountant']}, "
            f"σ = {claim['noise_multiplier']:.4g}, C = {claim['max_grad_norm']:g}, q = {claim['sample_rate']:.4g}"
            f"{', bands = ' + str(claim['bands']) if 'bands' in claim else ''})"
        )
        claimed += "".join(f"; NOT PRIVATE: {text}" for text in claim.get("voids", ()))
    rows = [
        ("model", report["model"]),
        ("data", f"{report['data']}, {report['num_units']:,} units ({report['unit']}), canaries among them"),
        ("canaries", f"{bound['num_canaries']}, of which {bound['num_included']} took part"),
        ("guesses", f"{bound['num_guesses']}, of which {bound['num_correct']} were right"),
        (
            "lower bound",
            f"ε ≥ {bound['epsilon_lower_bound']:.4g} at δ = {bound['delta']:.3g}, "
            f"with {bound['confidence']:.0%} confidence",
        ),
        ("claim", claimed),
        ("verdict", report["verdict"]),
    ]
    lines = ["audit report (NOT PRIVATE)", ""] + [f"{name:12}{value}" for name, value in rows]
    if report["verdict"] == UNTESTED:
        lines += [
            "",
            f"Even if every guess were right, {bound['num_canaries']} canaries would show no more than ε ≥ "
            f"{report['largest_possible_bound']:.3g}. To test the engine, audit the same configuration with a lower "
            "target_epsilon, or take more canaries.",
        ]
    if report["private/extraction"] is not None:
        lines += ["", *_extraction(report["private/extraction"])]
    return "\n".join([*lines, "", report["note"], ""])


def _extraction(extraction: dict[str, Any]) -> list[str]:
    table = Table([f"copies in {extraction['num_samples']:,} samples", *COPIES.values()])
    for origin, shares in extraction["shares"].items():
        table.rows.append([_words(origin), *("–" if shares[k] is None else f"{shares[k]:.2%}" for k in COPIES)])
    blocks = [table.text()]
    for title, key in (("canaries that came out", "extracted"), ("prompted with their own source", "prompted")):
        if key in extraction:
            counts = Table([title, "exact", "near", "of"])
            for origin, found in extraction[key].items():
                counts.rows.append([_words(origin), *(found[name] for name in ("exact", "near", "num_canaries"))])
            blocks.append(counts.text())
    return "\n\n".join(blocks).splitlines()


def _words(origin: str) -> str:
    name = origin.replace("_", " ")
    return f"{name} (control)" if origin == "excluded_canaries" else name

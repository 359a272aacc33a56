"""Metrics of what a sampling wrote, and all that is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

#: Share of the texts that may be cut off, and of the samples that may be missing, without a warning.
MANY_CUT_OFF = MANY_MISSING = 0.05
#: How a fault is told of, where its name alone would not say it.
_FAULTS = {"broken": "with broken characters", "a tree": "with code in them", "malformed": "not well-formed"}
_TRAIN_MORE = "train for longer or at a larger epsilon, in another run"
#: Folder of the system whose stages have settings of their own.
_STAGES = "two_stage"


def sample_metrics(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``synthetic/…`` metrics of sampled texts.

    *Privacy.* A function of what a released model wrote.

    Args:
        lines: As :class:`~callbacks.synthetic_writer.SyntheticWriter` keeps them in its parts.

    Returns:
        ``num_samples``, the lines; ``num_missing``, what was given up; ``num_drawn``, all texts, and ``dropped/FAULT``,
        those of them that were no samples; ``finished``, the share of texts that the model ended itself;
        ``valid_trees``, of well-formed ones, where the target is a tree; ``slots_said``, the share of the names of the
        prompts, where these are slots, that the samples say, and ``slots_invented``, the share of what the samples say
        that no prompt has.
    """
    kept = [line for line in lines if not line["dropped"]]
    faults = Counter(fault for line in lines for fault in line["faults"])
    num_drawn = len(kept) + faults.total()
    num_finished = sum(line["finished"] for line in kept) + faults.total() - faults["cut off"]
    metrics: dict[str, float] = {
        "synthetic/num_samples": len(kept),
        "synthetic/num_missing": len(lines) - len(kept),
        "synthetic/num_drawn": num_drawn,
        **{f"synthetic/dropped/{fault}": number for fault, number in sorted(faults.items())},
        "synthetic/finished": num_finished / num_drawn,
    }
    if any(line["valid"] is not None for line in lines):
        metrics["synthetic/valid_trees"] = sum(bool(line["valid"]) for line in kept) / num_drawn
    num_given, num_said, num_own = (sum(line["num_slots"][i] for line in kept) for i in range(3))
    if num_given:
        metrics["synthetic/slots_said"] = num_said / num_given
        metrics["synthetic/slots_invented"] = num_own / (num_said + num_own) if num_said + num_own else 0.0
    return metrics


def summary(metrics: Mapping[str, float]) -> str:
    """Say what was written, how fast, and what was thrown away."""
    rate, faults = metrics.get("synthetic/samples_per_second"), _faults(metrics)
    missing = metrics["synthetic/num_missing"]
    return (
        f"wrote {metrics['synthetic/num_samples']} samples"
        + (f", {rate:.1f} a second" if rate else "")
        + (f". Thrown away and drawn again: {faults}." if faults else ".")
        + (f" {missing} samples are missing, for which no text would do." if missing else "")
    )


def none_will_do(metrics: Mapping[str, float] | None, output: Path, pl_module: pl.LightningModule) -> str:
    """Say that no text for a file is a sample, and what to set; without metrics nothing may be counted."""
    field, which, longer = sampling_field(pl_module, output), f"no text for {output} is a sample", ""
    if metrics is not None:
        which = f"none of the {metrics['synthetic/num_drawn']} texts for {output} is a sample ({_faults(metrics)})"
        if "synthetic/dropped/cut off" in metrics:
            longer = f"give a larger {field}.max_new_tokens, "
    return f"{which}: {longer}{_TRAIN_MORE}; {field}.redraws=null keeps all texts"


def missing_warning(metrics: Mapping[str, float]) -> str | None:
    """Say that more than a twentieth of the samples are missing, and why; None where they are not."""
    missing = metrics["synthetic/num_missing"]
    num = metrics["synthetic/num_samples"] + missing
    if missing <= MANY_MISSING * num + 1e-9:
        return None
    way = _TRAIN_MORE
    num_faults = metrics["synthetic/num_drawn"] - metrics["synthetic/num_samples"]
    if 2 * metrics.get("synthetic/dropped/broken", 0) > num_faults:
        way = "the base model knows these characters as bytes alone: take a model.base_model of this language"
    return f"{missing:,} of {num:,} samples are missing, for no text would do ({_faults(metrics)}): {way}"


def cut_off_warning(
    metrics: Mapping[str, float], pl_module: pl.LightningModule, output: Path | None = None
) -> str | None:
    """Say what to set where more than a twentieth of the texts were cut off; None where they were not."""
    share = 1 - metrics["synthetic/finished"]
    if share <= MANY_CUT_OFF + 1e-9:
        return None
    cut = f"{share:.0%} of {metrics['synthetic/num_drawn']:,} texts were cut off"
    wanted = getattr(getattr(pl_module, "sampling", None), "max_new_tokens", None)
    config = getattr(getattr(pl_module, "model", None), "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    field = f"{sampling_field(pl_module, output)}.max_new_tokens"
    if wanted is None or (positions is not None and wanted >= positions - 1):
        return (
            f"{cut} at the last position of the model{f', {positions}' if positions else ''}, so no larger {field} "
            "helps: take a model.base_model with more positions, or train for longer"
        )
    tried = 2 * wanted if positions is None else min(2 * wanted, positions)
    return f"{cut} at {wanted} tokens, so long ones are lacking: {field}={tried} suits what has no samples yet"


def sampling_field(pl_module: Any, output: Path | None = None) -> str:
    """Return the prefix of the sampling's arguments where ``output`` is from: in a step by hand, or in a run.

    There it is one that no other system has, so that it may still be set where others have samples.
    """
    text_format = pl_module.text_format
    stage = "parse_tree" if text_format.target == "parse" else "parse2utterance"
    if output is None:
        return "stages.parse_tree.sampling" if text_format.target == "parse" else "sampling"
    place = output.resolve()
    run = next((at for at in place.parents[:4] if (at / "experiment.yaml").is_file()), None)
    if run is None:
        return "--model.init_args.sampling"
    system, *inner = place.relative_to(run).parts
    if not inner:
        return "sampling"
    return f"stages.{stage}.sampling" if system == _STAGES else f"variants.{system}.sampling"


def _faults(metrics: Mapping[str, float]) -> str:
    """What the texts were that were no samples; empty where there were none."""
    dropped = {name.rsplit("/", 1)[-1]: int(n) for name, n in metrics.items() if "/dropped/" in name}
    return ", ".join(f"{n} {_FAULTS.get(fault, fault)}" for fault, n in dropped.items())

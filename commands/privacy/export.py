"""Weights to release: a folder without optimiser state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from commands.privacy.coverage import FILE_NAME, taken_as_given
from commands.run_folder.manifest import Manifest
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.stage_config import StageConfig
from doppel.errors import UserError
from doppel.files import write_text
from doppel.models.lora_folder import base_of, digests
from doppel.privacy.card import CARD
from doppel.run_folder import run_of

if TYPE_CHECKING:
    from doppel.models.frozen_base import FrozenBase

_OWN_README = """# {name}

{statement}

Its privacy card is `privacy_card.json`. Beside this folder, and with the code of `{module}`:

```python
import torch
from {module} import {cls}

model = {cls}({arguments})
model.load_state_dict(torch.load({file}, weights_only=True))
model.eval()
```
"""
_BY_HAND = "what its training was given: no step of `python cli.py run` made the checkpoint"


def export(
    stage_dir: Path,
    out: Path,
    *,
    merge: bool = False,
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
) -> int:
    """Write a trained model as a folder to release.

    Release this folder, never a checkpoint: last.ckpt also holds the settings of the run and the optimiser's state. The
    folder holds weights, tokenizer, privacy card, generation_config.json, and README.md with the lines of Python that
    sample from it. Any Hugging Face code loads it, and so does base_model. Of a training with LoRA it holds the LoRA
    weights alone, as peft and vLLM read them, and the card names their base by SHA-256. Of a model of your own it holds
    pytorch_model.bin, its state dict, the card, and README.md with the lines that load it.

    Example:
        python cli.py export runs/mine/topics/one_stage released/topics

    Args:
        stage_dir: Folder of the stage that trained, RUN/SYSTEM/STAGE.
        out: Folder to write, which must be empty or not there.
        merge: Add LoRA weights to those of the base, and write the whole model.
        dtype: Type of the weights: float32 if left out, of merged ones that of the base. float16 and bfloat16 halve the
            size on disk.

    Returns:
        Exit status: 1 where the training was private and the ledger does not cover its weights, which the card and the
        last lines say.

    Raises:
        UserError: There is no such model, or its folder is not empty.
    """
    import torch

    from callbacks.export import write_adapters, write_pretrained, write_weights
    from commands.lightning.trained_model import trained_model
    from commands.privacy.prompting import Prompting
    from doppel.privacy.checkpoint import read_checkpoint

    checkpoint = stage_dir / "checkpoints" / "last.ckpt"
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty, and whatever lies there would be released too: give another folder")
    config = StageConfig.read(stage_dir)
    if not checkpoint.is_file():
        raise UserError(f"there is no {checkpoint}: give the folder of a stage that trained")
    is_lora = "base_model" in config.model and bool(config.model.get("lora"))
    if merge and not is_lora:
        raise UserError(f"{stage_dir} was trained without LoRA, and its weights are whole: leave --merge out")
    card, is_covered = _card(stage_dir, checkpoint, config)
    if "base_model" in config.model:
        model = trained_model(checkpoint, config)
        prompting = Prompting.of(stage_dir, config, model.text_format)
        model.model.generation_config = prompting.generation_config(model.text_format)
        if model.base is not None and not merge:
            card["base"] = _base(model.base)
        kind = torch.float32 if model.base is None or not merge else model.base.dtype
        kind = kind if dtype is None else getattr(torch, dtype)
        (write_adapters if "base" in card else write_pretrained)(out, model.model, model.text_format, kind, card)
        write_text(out / "README.md", prompting.readme(out, model.text_format, card["statement"], card.get("base")))
        what = f"{'LoRA weights' if 'base' in card else 'weights'}, tokenizer, {CARD}, and how to sample in README.md"
    else:
        write_weights(out, read_checkpoint(checkpoint)["state_dict"], getattr(torch, dtype or "float32"), card)
        what = f"pytorch_model.bin and {CARD}"
        if not _class_path(config).startswith("lightning_modules."):
            write_text(out / "README.md", _own_readme(out, config, card["statement"]))
            what = f"pytorch_model.bin, {CARD}, and how to load it in README.md"
    caveats = [f"not checked: {text}" for text in card.get("not_checked", ())]
    print("\n".join([f"{out}: {what}", card["statement"], *caveats]))
    return int(not is_covered)


def _base(base: FrozenBase) -> dict[str, Any]:
    """What LoRA weights say of the model that they are for: its name, as anybody may read it, its files, its packing.

    Raises:
        UserError: Nothing loads them on top of it: it is in no folder, or in one of LoRA weights.
    """
    whole = "add --merge, which writes the whole model"
    if not base.is_in_folder:
        raise UserError(
            f"the base of this training is not what {base.name} holds: its weights stand in the checkpoint alone, for "
            f"they are from init_weights, of init: random or of an older release; {whole}"
        )
    if base_of(base.name) is not None:
        raise UserError(
            f"{base.name}, the base of this training, is a folder of LoRA weights, on top of which nothing loads "
            f"others: {whole}"
        )
    told = {"name": public_names(base.name), "sha256": digests(base.name)}
    return told if base.quantization is None else {**told, "quantization": base.quantization}


def _class_path(config: StageConfig) -> str:
    return str((config.content.get("model") or {}).get("class_path"))


def _own_readme(out: Path, config: StageConfig, statement: str) -> str:
    """The lines that load a model of one's own: its class, with the arguments of its training, files by their names."""
    module, _, name = _class_path(config).rpartition(".")
    arguments = ", ".join(f"{key}={value!r}" for key, value in public_names(config.model).items())
    return _OWN_README.format(
        name=out.resolve().name, statement=statement, file=repr(f"{out.resolve().name}/pytorch_model.bin"),
        module=module, cls=name, arguments=arguments,
    )  # fmt: skip


def _card(stage_dir: Path, checkpoint: Path, config: StageConfig) -> tuple[dict[str, Any], bool]:
    """What holds for the weights, by the scope of the ledger that paid for them; and whether it is what was promised.

    A checkpoint of a run must be as its step left it. Of one that was trained by hand nothing but the ledger tells, and
    the card says so under ``not_checked``.
    """
    from doppel.files import sha256_of
    from doppel.privacy.card import not_private_card
    from doppel.privacy.checkpoint import privacy_state, read_checkpoint
    from doppel.privacy.ledger import Ledger

    saved = read_checkpoint(checkpoint)
    state, origins = privacy_state(saved), public_names(saved.get("origins", []))  # anybody may read the card
    if state is None:
        return not_private_card(saved.get("data_is_public"), origins), True
    given = None if config.privacy is None else config.privacy.ledger_path
    ledger = Ledger(_ledger_path(stage_dir, given))
    scope, digest = state["scope"], sha256_of(checkpoint)
    manifest = Manifest.read(run_of(stage_dir))
    made = next((e for e in manifest.find("checkpoint") if manifest.path(e).resolve() == checkpoint.resolve()), None)
    reasons = [reason for reason in (ledger.unpaid_reason(digest, scope), *ledger.voids(scope)) if reason]
    if made is not None and not manifest.is_as_made(made):
        reasons.append(f"{made.path} was changed after {made.step} made it")
    if made is not None and made.budget != scope:
        reasons.append(f"{made.path} was made for budget {made.budget!r}, and its steps were charged to {scope!r}")
    summary = ledger.summary()
    scopes = summary["scopes"]
    if scope not in scopes:
        reasons.append(f"{ledger.path} has no budget {scope!r} of this run: give the run folder its {FILE_NAME} back")
    if reasons:
        why = "; ".join(reasons).replace(str(ledger.path), ledger.path.name)  # anybody may read it
        return {"private": False, "is_public": False, "statement": f"NOT PRIVATE: {why}"}, False
    spent = scopes[scope]
    statement = (
        f"PRIVATE: all that was trained in budget {scope!r} is (ε = {spent['target_epsilon']:.4g}, δ = "
        f"{spent['delta']:.3g})-differentially private under adding or removing {spent['protects']}; spent so far: ε = "
        f"{spent['epsilon']:.4g}"
    )
    everything = summary["everything"]
    statement += f"; {everything['short']}" if everything["short"] else ""
    together = {name: everything[name] for name in ("epsilon", "target_epsilon", "delta", "accountant", "num_runs")}
    told = {"statement": statement, "scope": scope, "num_steps": state["num_steps"], "origins": origins}
    told["paid"] = {name: state[name] for name in ("scope", "mechanism_id", "num_steps")} | {"sha256": digest}
    run = RunFolder(run_of(stage_dir))
    behind = [] if made is None else manifest.upstream(made.path)
    taken = taken_as_given(run, behind, [config.model.get("base_model")])
    not_checked = [*([] if made is not None else [_BY_HAND]), *taken]
    return {"private": True, **told, **spent, "everything": together, "not_checked": not_checked}, True


def _ledger_path(stage_dir: Path, given: str | None) -> Path:
    """The ledger of a stage: in its folder, as of an audit, or in that of its run, which may name one that serves many
    runs; else the one that its configuration gives."""
    own = [folder / FILE_NAME for folder in (stage_dir, run_of(stage_dir))]
    return next((path for path in own if path.exists()), Path(os.path.expandvars(given)) if given else own[-1])

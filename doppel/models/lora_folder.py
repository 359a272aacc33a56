"""A folder of LoRA weights as peft writes it: which base it is for, merging it into that one, and writing one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.models.families import name_in_base
from doppel.models.hub import fetched, given, gives, is_hub_name

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

#: Rank, scale, layers and base of the adapters. A folder with it, and without a ``config.json``, is no whole model.
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
#: What of them is fetched from the hub: they, their tokenizer and their card.
_OF_HUB = (CONFIG, WEIGHTS, "*token*", "vocab.json", "merges.txt", "chat_template.jinja", "privacy_card.json")
#: What peft writes before the name of a layer.
_OWNER = "base_model.model."
#: Where the shipped models are, which a folder may name from there.
_ROOT = Path(__file__).parents[2]


def lora_of(name: str | Path) -> tuple[Path, str] | None:
    """Return the folder of LoRA weights that a name stands for, and the base that they are for.

    Weights of the hub are fetched, if they are not on this machine, and the folder is where they lie here.

    Args:
        name: A folder, or a hub name.

    Returns:
        The base is a folder, from here or beside the code, or a hub name. None where the name is none of LoRA weights.

    Raises:
        UserError: Its ``adapter_config.json`` cannot be read, or names no other folder or hub name.
    """
    if (folder := _folder_of(name)) is None:
        return None
    base = _named_in(folder)
    below, above = base, [folder]
    while (lower := _folder_of(below)) is not None:
        above.append(lower)
        if lower.resolve() in {one.resolve() for one in above[:-1]}:
            raise UserError(
                f"{folder} holds LoRA weights, and no whole model is below them: {' is for '.join(map(str, above))}; "
                f"write the folder or hub name of the base into one {CONFIG} of these, as base_model_name_or_path"
            )
        below = _named_in(lower)
    return folder, base


def base_of(name: str | Path) -> str | None:
    """Return the base of :func:`lora_of`."""
    found = lora_of(name)
    return None if found is None else found[1]


def _folder_of(name: str | Path) -> Path | None:
    folder = Path(name).expanduser()
    found = folder if folder.is_dir() else _from_hub(str(name))
    is_lora = found is not None and (found / CONFIG).is_file() and not (found / "config.json").is_file()
    return found if is_lora else None


def _from_hub(name: str) -> Path | None:
    """The folder of LoRA weights that the hub gives, or has given to this machine; None where it gives none."""
    if not is_hub_name(name) or given(name, "config.json") is not None:  # the latter is of a whole model
        return None
    found = given(name, CONFIG)
    if found is not None and (found.parent / WEIGHTS).is_file():
        return found.parent
    return fetched(name, _OF_HUB) if gives(name, CONFIG) else None


def _named_in(folder: Path) -> str:
    try:
        base = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    if not base or not isinstance(base, str):
        raise UserError(
            f"{folder} holds LoRA weights, and its {CONFIG} names no base: write the folder or hub name of the base "
            "there, as base_model_name_or_path"
        )
    return str(_ROOT / base) if not Path(base).is_dir() and (_ROOT / base).is_dir() else base


def digests(base: str) -> dict[str, str]:
    """Return the SHA-256 of a model's files of weights, by name; nothing where no file of it is on this machine."""
    folder = Path(base)
    if not folder.is_dir():
        found = given(base, "config.json")
        if found is None:
            return {}
        folder = found.parent
    return {file.name: sha256_of(file) for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])}


def merge(model: PreTrainedModel, folder: Path) -> None:
    """Add the LoRA weights of a folder to the layers of a model that they adapt, in place and in the model's dtype.

    A layer of four bits that they adapt is unpacked, for most of what they add is less than a step of its codes.

    Args:
        model: Their base, as it was loaded.
        folder: The folder.

    Raises:
        ValueError: They are of another kind than LoRA, do not fit, or are not finite.
    """
    from peft import LoraConfig, PeftConfig, PeftModel
    from peft.tuners.lora import LoraLayer
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    from doppel.models.quantized import PackedLinear

    if not (folder / WEIGHTS).is_file():  # else peft asks the hub for it
        raise ValueError(f"it holds no {WEIGHTS}: copy it there, as save_pretrained of peft writes it")
    config = PeftConfig.from_pretrained(str(folder))
    if not isinstance(config, LoraConfig):
        raise ValueError(f"it holds weights of the kind {config.peft_type.value}, and LoRA alone is merged into a base")
    if isinstance(config.target_modules, set):
        config.target_modules = {name_in_base(model, name, is_back=True) for name in config.target_modules}
    adapted = PeftModel(model, config)
    weights = {
        _OWNER + name_in_base(model, name.removeprefix(_OWNER), is_back=True): value
        for name, value in load_peft_weights(str(folder), device="cpu").items()
    }
    found: Any = set_peft_model_state_dict(adapted, weights)
    missing = [name for name in found.missing_keys if adapted.base_model.prefix in name]
    if misfits := [*missing, *found.unexpected_keys]:
        example = f"{len(misfits)} of its LoRA weights are missing or fit no layer of the base, such as {min(misfits)}"
        raise ValueError(f"{example}: name the base that they were trained on in {CONFIG}")
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if any(isinstance(layer, LoraLayer) for layer in (head, embedding)) and model.config.tie_word_embeddings:
        raise ValueError(
            "it adapts the output head or the embedding, whose weight is one in its base: no merged weight is both: "
            "take LoRA weights that leave the two alone"
        )
    layers = [m.get_base_layer() for m in adapted.modules() if isinstance(m, LoraLayer)]
    if packed := [layer for layer in layers if isinstance(layer, PackedLinear)]:
        log.warning(
            "%d layers of four bits hold the LoRA weights of %s, in %s and no longer packed: model.quantization: nf4 "
            "packs them again, which rounds away much of what was learnt",
            len(packed),
            folder,
            str(model.dtype).removeprefix("torch."),
        )
    for layer in packed:
        layer.unpack(model.dtype)
    adapted.merge_and_unload(safe_merge=True)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())


def write(folder: Path, model: PreTrainedModel, base: str, dtype: torch.dtype) -> None:
    """Write the adapters of a model, as ``PeftModel.from_pretrained`` and a ``LoRARequest`` of vLLM read them.

    Args:
        folder: Folder to write.
        model: A model with adapters, see :func:`~doppel.models.adapters.add_adapters`.
        base: Folder or hub name of the model below them, for who loads them.
        dtype: Of the weights.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    own: Any = model.peft_config["default"]  # type: ignore[index, union-attr]
    config = replace(
        own,
        lora_alpha=int(own.lora_alpha) if float(own.lora_alpha).is_integer() else own.lora_alpha,
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    config.target_modules = sorted(_targets(model))  # a set has another order in each process
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    weights = {
        _OWNER + name_in_base(model, name): value.detach().cpu().to(dtype).contiguous()
        for name, value in get_peft_model_state_dict(model, save_embedding_layers=False).items()
    }
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def _targets(model: PreTrainedModel) -> set[str]:
    """The last parts of the adapted layers' names, where these name no other layer; else whole names of the base."""
    from peft.tuners.lora import LoraLayer

    adapted = {name for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    parts = {name.rpartition(".")[2] for name in adapted}
    alike = {name for name, _ in model.named_modules() if name.rpartition(".")[2] in parts}
    is_whole = not hasattr(model, "place_in_base")  # else a tower may have layers of these names
    return parts if alike == adapted and is_whole else {name_in_base(model, name) for name in adapted}

"""The language model of a family that has more than one: towers for images and sounds are neither trained nor kept."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def class_for(config: Any) -> Any:
    """Return the class of transformers that loads a language model, alone or with what sees images."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto import modeling_auto

    is_known = type(config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING or config.get_text_config() is config
    is_other = not is_known and type(config) in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if is_other else AutoModelForCausalLM


def language_model_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the language model of a multimodal one, as transformers has it without the rest; any other model itself.

    Adapters on a tower that no text goes through would learn the noise alone. The weights are the same tensors, and
    what is exported is a folder of the language model, such as a ``Gemma3ForCausalLM``.

    Raises:
        ValueError: There is no such class, or the model is not put together as others are.
    """
    import torch
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if model.config.get_text_config() is model.config:
        return model
    config = copy.deepcopy(model.config.get_text_config())
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    trunk, head = getattr(model.base_model, "language_model", None), model.get_output_embeddings()
    if kind is None or trunk is None or head is None:
        raise ValueError(
            f"it is a {type(model).__name__}, whose language model cannot be had alone: give a folder of one that is "
            "for text"
        )
    config.tie_word_embeddings = head.weight is trunk.get_input_embeddings().weight
    with torch.device("meta"):
        alone: PreTrainedModel = kind(config)
    setattr(alone, alone.base_model_prefix, trunk)
    alone.set_output_embeddings(head)
    alone.generation_config = model.generation_config
    alone.place_in_base = next(name for name, module in model.named_modules() if module is trunk)
    return alone.train(model.training)


def name_in_base(model: PreTrainedModel, name: str, is_back: bool = False) -> str:
    """Return what a layer of a language model is called in the base that it was taken from; or the way back."""
    own, base = f"{model.base_model_prefix}.", f"{getattr(model, 'place_in_base', model.base_model_prefix)}."
    own, base = (base, own) if is_back else (own, base)
    return base + name.removeprefix(own) if name.startswith(own) else name

"""How well a language model of public text expects texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_IGNORED = -100


@torch.inference_mode()
def text_losses(
    model: Any, examples: Sequence[Sequence[int]], num_prompt: int = 1, tokens_per_batch: int = 2048
) -> Tensor:
    """Mean negative log-likelihood of each text's tokens, in nats per token.

    Mireshghallah et al. (2023) discard a setup whose texts have a mean above 2.0 under GPT-2 fine-tuned on human
    utterances. The model must have learnt from public text alone, else its losses leak what it learnt from.

    Args:
        model: Hugging Face causal language model, in evaluation mode.
        examples: Token ids of each text after those of the prompt, which are not predicted.
        num_prompt: Tokens of the prompt, at least one.
        tokens_per_batch: Bound on rows times padded length.

    Returns:
        Float32 losses on the CPU, shape [num_texts], in the order of the texts.

    Raises:
        ValueError: An example has no token to predict.
    """
    if any(len(ids) <= num_prompt for ids in examples):
        raise ValueError(f"an example has no token to predict after the {num_prompt} of its prompt")
    losses = torch.zeros(len(examples))
    order = sorted(range(len(examples)), key=lambda i: len(examples[i]), reverse=True)
    device = next(model.parameters()).device
    while order:
        width = len(examples[order[0]])
        rows = max(1, tokens_per_batch // width)
        batch, order = order[:rows], order[rows:]
        ids = [torch.tensor(examples[index]) for index in batch]
        ids_BT = pad_sequence(ids, batch_first=True)  # on the right, where causal attention never looks
        labels_BT = pad_sequence([row[1:] for row in ids], batch_first=True, padding_value=_IGNORED).to(device)
        labels_BT[:, : num_prompt - 1] = _IGNORED
        logits_BTV = model(input_ids=ids_BT.to(device), use_cache=False).logits[:, :-1].float()
        nll_BT = F.cross_entropy(logits_BTV.mT, labels_BT, ignore_index=_IGNORED, reduction="none")
        losses[batch] = (nll_BT.sum(1) / (labels_BT != _IGNORED).sum(1)).cpu()
    return losses

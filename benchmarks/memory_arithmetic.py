"""Where the memory of a GPT-2 training step goes, by arithmetic; checked against measured peaks by ``memory.py``."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GPT2Config

from benchmarks._harness import table
from doppel.privacy.clipping.head import LOGITS, LOGITS_CPU

#: Bytes per token and layer, in units of the width d, that the backward pass of a block needs, with fp32 weights:
#: residual stream twice, inputs of the four linear layers, query/key/value, and what the tanh form of GELU saves.
_KEPT = {
    "32": 4 * (2 + 1 + 3 + 1 + 1 + 16 + 4),
    "bf16": 4 * 2 + 2 * (1 + 3 + 1 + 1 + 16 + 4),
    "fp16": 4 * 2 + 2 * (1 + 3 + 1 + 1 + 16 + 4),
}
#: On CUDA, autocast takes the powers in GELU in fp32: its input, tanh and 1 + tanh are saved in fp32.
_KEPT_CUDA_HALF = 4 * 2 + 2 * (1 + 3 + 1 + 1) + 4 * (4 + 4 + 4) + 2 * (4 + 4)
#: The clipper saves the layers' inputs as the layers get them: LayerNorm's output in fp32, beside its half copy's use.
_CLIPPER_EXTRA_HALF = 2 * 2
_CLIPPER_EXTRA_CUDA_HALF = 2 * 2 + 2 * 4


@dataclass(frozen=True)
class Prediction:
    """Bytes of each part at the moment of the step when they are most.

    Attributes:
        moment: Which moment that is.
        parts: Bytes by name.
    """

    moment: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def markdown(self) -> str:
        """The parts as a table."""
        rows = [[name, f"{size / 1e9:.2f}"] for name, size in self.parts.items() if size]
        return table((f"at {self.moment}", "GB"), [*rows, ["**total**", f"**{self.total / 1e9:.2f}**"]])


def predict(
    config: GPT2Config,
    rows: int,
    length: int,
    precision: str = "32",
    *,
    private: bool = True,
    lora_rank: int | None = None,
    checkpointing: bool = False,
    head_loss: bool = True,
    first_micro_batch: bool = False,
    device: str = "cuda",
) -> Prediction:
    """Peak memory of a step with AdamW on micro-batches of ``rows`` x ``length`` tokens, all labelled.

    Weights are fp32 (autocast keeps copies of them in half precision). Three moments are compared: the start of the
    backward pass (all activations, and the logits), its end (all that book-keeping holds for the clipped sum; with
    checkpointing, one block computed again), and the optimizer's step.

    Args:
        config: Architecture; embedding and head tied.
        rows: Rows of the micro-batch.
        length: Tokens of a row.
        precision: ``32``, or ``bf16`` or ``fp16`` autocast.
        private: With the clipper, or ordinary training.
        lora_rank: Adapters of this rank on all linear layers of the blocks, all else frozen; None trains everything.
        checkpointing: Activation checkpointing of each block.
        head_loss: The loss is a ``HeadLoss``, whose gradient takes the place of the logits.
        first_micro_batch: The step has one micro-batch: no gradients are held while activations are.
        device: ``cuda`` or ``cpu``; they differ in what autocast and AdamW do.
    """
    layers, d, vocabulary = config.n_layer, config.n_embd, config.vocab_size
    tokens, half = rows * length, precision != "32"
    operand = 2 if half and not (private and device == "cpu") else 4  # the CPU has no GEMM from half into fp32
    per_block = 12 * d * d + 13 * d
    num_weights = vocabulary * d + config.n_positions * d + layers * per_block + 2 * d
    num_adapters = 0 if lora_rank is None else layers * lora_rank * ((d + 3 * d) + (d + d) + 2 * (d + 4 * d))
    num_trained = num_weights if lora_rank is None else num_adapters

    kept = _KEPT_CUDA_HALF if half and device == "cuda" else _KEPT[precision]
    if private and half:
        kept += _CLIPPER_EXTRA_CUDA_HALF if device == "cuda" else _CLIPPER_EXTRA_HALF
    block = tokens * d * kept + tokens * config.n_head * 4
    inputs_and_gradients = tokens * layers * d * operand * (7 + 9)  # A and G of the four linear layers of each block
    if lora_rank is not None:
        block += tokens * operand * 4 * lora_rank
        adapters = tokens * layers * operand * ((d + 3 * d + d + 5 * d) + (8 * lora_rank))
        inputs_and_gradients = adapters + tokens * layers * operand * 3 * d
    boundary = tokens * layers * d * 4  # inputs of the blocks
    if checkpointing and not private:
        inputs_and_gradients = boundary
    again = block + tokens * d * 4 * 4
    activations = (boundary if checkpointing else layers * block) + tokens * d * 4 * 2  # the last LayerNorm's too

    logits = tokens * vocabulary
    head_is_trained = lora_rank is None
    if head_loss:
        loss = logits * (2 if half else 4) + 2.0 * min(LOGITS if device == "cuda" else LOGITS_CPU, logits) * 4
    else:
        loss = logits * 4 * 3  # log-softmax, its gradient, and the dense gradient of the picked token's loss
    loss_at_end = logits * operand if private and head_is_trained else 0

    static = {
        "weights": 4.0 * num_weights + (0 if lora_rank is None else 4.0 * num_adapters),
        "Adam state": 8.0 * num_trained,
        "half-precision copies of the weights": 2.0 * (num_weights - config.n_positions * d) if half else 0.0,
    }
    gradients = 0.0 if first_micro_batch else 4.0 * num_trained
    moments = [
        Prediction(
            "the start of the backward pass",
            {
                **static,
                "gradients of earlier micro-batches": gradients,
                "activations": activations,
                "logits and their gradient": loss,
            },
        ),
        Prediction(
            "the end of the backward pass",
            {
                **static,
                "gradients": gradients if private else 4.0 * num_trained,
                "one block, computed again": again if checkpointing else 0.0,
                "kept of the layers": inputs_and_gradients if private or checkpointing else 0.0,
                "logits' gradient": loss_at_end,
            },
        ),
        Prediction(
            "the optimizer's step",
            {
                **{name: size for name, size in static.items() if "copies" not in name},
                "gradients": 4.0 * num_trained,
                "temporaries of AdamW": 4.0 * num_trained if device == "cuda" else 8.0 * vocabulary * d,
            },
        ),
    ]
    return max(moments, key=lambda moment: moment.total)

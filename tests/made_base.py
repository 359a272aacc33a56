"""A Llama of two layers in a GGUF file: a model of the family that `make base-135m` converts, without the download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.smollm2.make import PAD

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", PAD)
LAYERS, WIDTH, INNER, HEADS, KV_HEADS, POSITIONS = 2, 64, 96, 4, 2, 128


def byte_tokens() -> list[str]:
    """One token for each byte, as byte-level BPE writes them."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path, special: tuple[str, ...] = _SPECIAL) -> dict[str, np.ndarray]:
    """Write the model, quantised as the real one is: 4 bits with a minimum (Q4_1) in the blocks, 8 in the embeddings.

    Args:
        path: The file.
        special: Its special tokens; the second and third begin and end a text, and the third is the padding too.

    Returns:
        The weights before they were quantised, by their names in the file.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    merges = ["Ġ t", "h e", "Ġt he", "1 2"]  # the last one is never used: digits are cut one by one
    tokens = [*special, *byte_tokens(), *(merge.replace(" ", "") for merge in merges)]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        weights[name] = random.normal(scale=0.05, size=shape).astype(np.float32)
        kind = GGMLQuantizationType.Q8_0 if name.startswith("token") else GGMLQuantizationType.Q4_1
        writer.add_tensor(name, quants.quantize(weights[name], kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    keys = KV_HEADS * WIDTH // HEADS
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, dtype=np.float32))
        for name, rows, columns in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", keys, WIDTH),
            ("attn_v", keys, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ]:
            add(f"blk.{layer}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights

"""What the shipped base model can do before any private step: losses, and how often it copies quoted names.

    python benchmarks/base_model.py [--model models/base] [--pairs 500] [--data FILE]

Prints a Markdown table. Pairs are drawn from the embedded grammar with a seed that training never used, less every pair
that it trained on; FILE adds a row for real dialogues.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import torch

from datamodules.encoded_turns import encode_turns
from datamodules.logical_batches import AllTurns
from datamodules.readers import read_turns
from datamodules.turn import Turn
from doppel.grammar import generate
from lightning_modules.causal_lm import CausalLM
from lightning_modules.generation import SamplingArguments, sample_texts
from lightning_modules.parse2utterance import Parse2Utterance
from lightning_modules.parse_tree_lm import ParseTreeLM
from lightning_modules.utterance_lm import UtteranceLM

# grammar draws of the three parts of its training (models/base/README.md): turns, seed, skew
TRAINED_ON = ((100_000, 1, 1.0), (90_000, 3, 0.7), (48_000, 5, 0.7))
_NAME = re.compile(r'"([^"]+)"')


def held_out_pairs(number: int, seed: int = 101) -> list[Turn]:
    """Distinct grammar pairs that the base model has not seen."""
    seen = {(t.utterance, t.parse) for turns, s, skew in TRAINED_ON for t in generate(turns, seed=s, skew=skew)}
    drawn = (Turn(*t) for t in generate(4 * number, seed=seed))
    fresh = {(t.utterance, t.parse): t for t in drawn if (t.utterance, t.parse) not in seen}
    return list(fresh.values())[:number]


@torch.no_grad()
def mean_loss(model: CausalLM, turns: Sequence[Turn]) -> float:
    """Mean over turns of the mean token loss, in nats; turns longer than the model's positions are left out."""
    encoded = encode_turns(turns, model.codec)
    batches = AllTurns(encoded, model.codec, max_tokens_per_batch=8192)
    losses = (model.eval().losses(batches[i].micro_batches[0]).sum().item() for i in range(len(batches)))
    return sum(losses) / (len(encoded) - encoded.num_over_long)


def copied_share(model: Parse2Utterance, turns: Sequence[Turn]) -> float:
    """Share of quoted names of the trees that occur in the utterance sampled for them, letter case aside."""
    named = [t for t in turns if t.parse and _NAME.search(t.parse) and "Path.apply" not in t.parse]
    prompts = model.codec.encode_prompts([t.parse or "" for t in named])
    arguments = SamplingArguments(num_beams=5, max_new_tokens=48)
    found = total = 0
    for start in range(0, len(named), 32):
        part = slice(start, start + 32)
        texts = sample_texts(model.model, model.codec, prompts[part], arguments, stream=(start,))
        for turn, (text, _) in zip(named[part], texts, strict=True):
            names = _NAME.findall(turn.parse or "")
            total += len(names)
            found += sum(name.lower() in text.lower() for name in names)
    return found / total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/base", help="folder or hub name (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=500, help="held-out grammar pairs (default: %(default)s)")
    parser.add_argument("--data", help="also judge the turns of this file")
    args = parser.parse_args()
    sets = {"held-out grammar pairs": held_out_pairs(args.pairs)}
    if args.data is not None:
        sets[args.data.rsplit("/", 1)[-1]] = read_turns(args.data, "utterance")
    models = [cls(base_model=args.model, loss_divisor=None) for cls in (UtteranceLM, Parse2Utterance, ParseTreeLM)]
    print("| turns | number | p(x) | p(x\\|y) | p(y) | names copied |")
    print("|---|---|---|---|---|---|")
    for name, turns in sets.items():
        losses = " | ".join(f"{mean_loss(model, turns):.2f}" for model in models)
        assert isinstance(models[1], Parse2Utterance)
        print(f"| {name} | {len(turns)} | {losses} | {copied_share(models[1], turns[:400]):.0%} |")


if __name__ == "__main__":
    main()

"""What a base model can do before any private step, and which checkpoint of its training to take.

    python -m models.base.measure MODEL... --judge models/smollm2-135m --utterances UTTERANCES [--data FILE]

Prints a Markdown table with lines for each MODEL, a folder or a checkpoint of a training that started from models/base:
first with names as they are, then with slots in their place. UTTERANCES are public and were not trained on; FILE adds
lines for the turns of a dialogue file.

All losses are in nats a word, so that they can be added. *fluency* is that of utterances sampled for trees, under a
public language model that is not the base. Of several checkpoints the one with the lowest *sum* on pairs of the grammar
is taken: what the model pays for public utterances and for utterances given their trees, and what the judge pays for
what the model writes. Nothing private is read, so the choice costs no ε.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from datamodules.batches.cut import all_examples
from datamodules.batches.encoded import encode_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.grammar import generate
from doppel.grammar.slot_table import SHIPPED
from doppel.metrics.fluency import LanguageModel
from lightning_modules.causal_lm import CausalLM, Parse2Utterance, ParseTreeLM, UtteranceLM

BASE = Path(__file__).parent
PAIRS_SEED = 101
#: The grammar's turns, seed and skew of the last part of the training, see configs/pretrain_requests.yaml.
TRAINED_ON = (40_000, 7, 0.7)
_NAME = re.compile(r'"([^"]+)"')


def load(kind: type[CausalLM], model: str, slots: str | None = None) -> CausalLM:
    """A model from a folder, or from a checkpoint of a training that started from models/base.

    Args:
        kind: What it is to model.
        model: Folder or checkpoint.
        slots: The table of slots; None for names as they are.
    """
    if model.endswith(".ckpt"):
        return kind(base_model=str(BASE), init_weights=model, loss_divisor=1, slots=slots).eval()
    return kind(base_model=model, loss_divisor=1, slots=slots).eval()


def held_out_pairs(number: int) -> list[Example]:
    """Distinct pairs of the grammar whose tree has a quoted name, none of them one that the last part trained on."""
    turns, seed, skew = TRAINED_ON
    seen = {(turn.utterance, turn.parse) for turn in generate(turns, seed=seed, skew=skew)}
    drawn = (Example(*turn) for turn in generate(6 * number, seed=PAIRS_SEED))
    pairs = {(t.utterance, t.parse): t for t in drawn if names(t) and (t.utterance, t.parse) not in seen}
    return list(pairs.values())[:number]


def names(turn: Example) -> list[str]:
    """Quoted strings of the tree that the user said."""
    return _NAME.findall(re.sub(r'\(Path\.apply "[^"]*"\)', "", turn.parse or ""))


@torch.no_grad()
def nats_a_word(model: CausalLM, turns: Sequence[Example]) -> float:
    """Loss of the targets with their ends, over the number of their words."""
    encoded = encode_examples(turns, model.text_format)
    batches = all_examples(encoded, max_tokens_per_batch=8192)
    nats = sum(model.losses(batch.micro_batches[0]).sum().item() for batch in batches)
    return nats / sum(len((getattr(turn, model.text_format.target) or "").split()) for turn in turns)


def utterances_for(model: CausalLM, turns: Sequence[Example]) -> list[str]:
    """An utterance sampled for each tree, as the quickstart samples."""
    trees = [turn.parse or "" for turn in turns]
    arguments = SamplingArguments(top_p=0.9, max_new_tokens=48)
    text_format = model.text_format
    written = sample_texts(model.model, text_format, text_format.encode_prompts(trees), arguments, stream=(0,))
    return [
        text_format.fill(text, tree, str(i)).text
        for i, ((text, _), tree) in enumerate(zip(written, trees, strict=True))
    ]


def copied(turns: Sequence[Example], texts: Sequence[str]) -> float:
    """Share of the trees' names that occur in the utterance written for them, letter case aside."""
    said = [name.lower() in text.lower() for turn, text in zip(turns, texts, strict=True) for name in names(turn)]
    return sum(said) / len(said)


def fluency(judge: LanguageModel, texts: Sequence[str]) -> float:
    """Nats a word of texts under the judge; lower is more fluent."""
    return sum(judge.nats(texts)) / sum(len(text.split()) for text in texts)


def line(model: str, turns: list[Example], public: list[Example], judge: LanguageModel, slots: str | None) -> list[str]:
    """What the model does with some turns, as cells of the table."""
    utterance, tree = load(UtteranceLM, model), load(ParseTreeLM, model, slots)
    given_tree = load(Parse2Utterance, model, slots)
    texts = utterances_for(given_tree, turns)
    general, spoken, read = nats_a_word(utterance, public), nats_a_word(given_tree, turns), fluency(judge, texts)
    losses = [general, nats_a_word(utterance, turns), spoken, nats_a_word(tree, turns)]
    return [
        *(f"{x:.2f}" for x in losses),
        f"{copied(turns, texts):.0%}",
        f"{read:.2f}",
        f"{general + spoken + read:.2f}",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def read_lines(path: Path, number: int) -> list[str]:
    """The last lines of a text file, plain or .gz."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()][-number:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--judge", required=True, help="folder of a public language model that is not the base")
    parser.add_argument("--utterances", type=Path, required=True, help="public utterances, one a line: the last 2,000")
    parser.add_argument("--data", help="dialogues of further lines")
    parser.add_argument("--pairs", type=int, default=400, help="pairs of each set at most (default: %(default)s)")
    args = parser.parse_args()
    public = [Example(text, None, "") for text in read_lines(args.utterances, 2000)]
    sets = {"grammar pairs": held_out_pairs(args.pairs)}
    if args.data is not None:
        turns = [turn for turn in read_examples(args.data, "utterance") if names(turn)]
        sets[Path(args.data).name.split(".")[0]] = turns[: args.pairs]
    judge = LanguageModel(args.judge)
    head = ["model", "turns", "number", "p(x), public", "p(x)", "p(x\\|y)", "p(y)", "names copied", "fluency", "sum"]
    sys.stdout.write(_row(head) + _row(["---"] * len(head)))
    for name, turns in sets.items():
        people = fluency(judge, [turn.utterance for turn in turns])
        sys.stdout.write(_row(["people", name, str(len(turns)), *[""] * 5, f"{people:.2f}", ""]))
        for form, slots in (("names", None), ("slots", SHIPPED)):
            for model in args.models:
                cells = line(model, turns, public, judge, slots)
                sys.stdout.write(_row([model, f"{name}, {form}", str(len(turns)), *cells]))
                sys.stdout.flush()


if __name__ == "__main__":
    main()

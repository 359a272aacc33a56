"""One-stage model p(x) of utterances."""

from __future__ import annotations

from typing import Any

from lightning_modules.causal_lm import CausalLM


class UtteranceLM(CausalLM):
    """Model p(x) of utterances: the one-stage baseline (Mireshghallah et al., 2023, Algorithm 1)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source=None, target="utterance", **kwargs)

"""Stage two: a model p(x|y) of utterances given a parse tree, or given a domain."""

from __future__ import annotations

from typing import Any, Literal

from lightning_modules.causal_lm import CausalLM


class Parse2Utterance(CausalLM):
    """Model p(x|y) of utterances given a prompt (Mireshghallah et al., 2023, Algorithm 2).

    Args:
        source: ``parse`` prompts with the parse tree; ``domain`` with the domain label, which makes it the
            domain2utterance model of the 1.5-stage baseline.
    """

    def __init__(self, source: Literal["parse", "domain"] = "parse", **kwargs: Any) -> None:
        super().__init__(source=source, target="utterance", **kwargs)

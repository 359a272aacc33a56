"""Stage one: a model p(y) of parse trees."""

from __future__ import annotations

from typing import Any

from lightning_modules.causal_lm import CausalLM


class ParseTreeLM(CausalLM):
    """Model p(y) of Lispress parse trees, the first stage of Mireshghallah et al., 2023, Algorithm 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source=None, target="parse", **kwargs)

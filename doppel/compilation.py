"""``torch.compile`` as this project uses it: one graph, each shape compiled for itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def compile_static(function: Callable[..., Any], backend: str = "inductor", mode: str | None = None) -> Any:
    """The function as one compiled graph for each set of argument shapes.

    A graph break is an error. Where ``torch.compile`` can isolate recompilations, what was compiled is this caller's
    alone: another's shapes of the same code do not count towards its limit, nor are they tried first.

    Args:
        function: What to compile; it is traced at its first call.
        backend: Backend of ``torch.compile``.
        mode: Mode of ``torch.compile``; ``reduce-overhead`` uses CUDA graphs.

    Raises:
        torch._dynamo.exc.Unsupported: At a call, if the function does not fit into one graph.
    """
    offered = inspect.signature(torch.compile).parameters
    wanted: dict[str, Any] = {"recompile_limit": 256, "isolate_recompiles": True}
    options = {name: value for name, value in wanted.items() if name in offered}
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=backend, mode=mode, **options)
    return compiled if options else torch._dynamo.config.patch(recompile_limit=256)(compiled)

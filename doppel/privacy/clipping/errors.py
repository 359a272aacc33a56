"""What the clipping engine refuses."""

from __future__ import annotations

from doppel.errors import UserError


class UnsupportedLayerError(UserError):
    """A trainable parameter whose per-sample gradient norm the engine cannot give exactly.

    The message is one line: the parameter or module, why it is refused, and what to do. It is always raised;
    a parameter is never left out of the norm in silence.
    """

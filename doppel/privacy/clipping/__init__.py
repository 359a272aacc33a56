"""Exact per-sample gradient clipping in one backward pass, without per-sample gradients."""

from doppel.privacy.clipping.clipper import PerSampleClipper
from doppel.privacy.clipping.refusals import UnsupportedLayerError

__all__ = ["PerSampleClipper", "UnsupportedLayerError"]

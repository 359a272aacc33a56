"""Structurally diverse samples: which rows of a large pool to annotate.

Uniform abstract template sampling of Oren et al. (2021), *Finding needles in a haystack: Sampling Structurally-diverse
Training Sets from Synthetic Data for Compositional Generalization*.

Formal guarantees:
    A sample is computed from the pool alone. If the pool is public, or the output of a differentially private mechanism
    (synthetic text of a private model), choosing from it is post-processing and spends nothing. If the pool is private
    text, the sample *is* private text: nothing here protects it.
"""

from doppel.selection.samplers import uat, uniform
from doppel.selection.templates import ProgramError, template

__all__ = ["ProgramError", "template", "uat", "uniform"]

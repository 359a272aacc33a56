"""Structurally diverse samples: which rows of a large pool to train on, or to annotate.

The methods of Oren et al. (2021), *Finding needles in a haystack: Sampling Structurally-diverse Training Sets from
Synthetic Data for Compositional Generalization*.

Formal guarantees:
    A sample is computed from the pool alone. If the pool is public, or the output of a differentially private mechanism
    (synthetic text of a private model), choosing from it is post-processing and spends nothing. If the pool is private
    text, the sample *is* private text: nothing here protects it.
"""

from doppel.selection.max_entropy import Gain, cmaxent, hybrid
from doppel.selection.pool import Pool
from doppel.selection.programs import abstract_query, names, template, tree
from doppel.selection.samplers import uat, uniform
from doppel.selection.split import compositional_split
from doppel.selection.structures import Structures, divergence, entropy, structures
from doppel.selection.tree import VALUE, ProgramError, Tree

#: Samplers by the name that the command line gives them.
SAMPLERS = {"uniform": uniform, "uat": uat, "cmaxent": cmaxent, "hybrid": hybrid}

__all__ = [
    "SAMPLERS",
    "VALUE",
    "Gain",
    "Pool",
    "ProgramError",
    "Structures",
    "Tree",
    "abstract_query",
    "cmaxent",
    "compositional_split",
    "divergence",
    "entropy",
    "hybrid",
    "names",
    "structures",
    "template",
    "tree",
    "uat",
    "uniform",
]

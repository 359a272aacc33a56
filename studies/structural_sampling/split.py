"""The compositional split: templates of the evaluation are never seen in training."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np

#: Templates that are always trained on: a filter by one condition, by two, and a projection over a filter.
BASIC = (
    "now => ( schema_table ) filter param:property REL_OP VALUE => notify",
    "now => ( schema_table ) filter param:property REL_OP VALUE LOG_OP param:property REL_OP VALUE => notify",
    "now => [ param:property ] of ( ( schema_table ) filter param:property REL_OP VALUE ) => notify",
)


def compositional_split(
    templates: Sequence[str],
    names: Sequence[Collection[str]],
    seed: int = 1,
    comp_share: float = 0.27,
    iid_share: float = 0.1,
    basic: Collection[str] = BASIC,
) -> dict[str, list[int]]:
    """Split rows as Oren et al. (2021, section 2 and appendix A).

    Templates but the basic ones are drawn into three sets. Two are the compositional test and development sets; rows of
    the third are split i.i.d.: a share of them is the test set, a share of the rest the development set. Then rows that
    are evaluated on and name what no training row names (a table, property, enum or operator) are dropped: nobody can
    learn it.

    Args:
        templates: Abstract template of each row, (rows,).
        names: What each row's program names (:func:`~studies.structural_sampling.programs.names`), (rows,).
        seed: Equal seeds split alike.
        comp_share: Share of the templates, but the basic ones, in each compositional set; the published files have 20
            and 19 of 71.
        iid_share: Share of rows in each i.i.d. set, as published.
        basic: Templates that are trained on in any case; those that no row has do not matter.

    Returns:
        Places of rows, in order, for ``train``, ``iid_dev``, ``iid_test``, ``comp_dev`` and ``comp_test``, and
        ``dropped``.

    Raises:
        ValueError: Not one entry of ``names`` for each template, a share out of range, or no row left to train on.
    """
    if len(templates) != len(names):
        raise ValueError(f"{len(templates)} templates, {len(names)} sets of names: give one for each row")
    if not (0 <= comp_share <= 0.5 and 0 <= iid_share < 1):
        raise ValueError(f"shares are {comp_share} and {iid_share}: give at most 0.5, and below 1")
    rng = np.random.default_rng(seed)
    others = sorted(set(templates).difference(basic))
    rng.shuffle(others)
    num = round(comp_share * len(others))
    part = dict.fromkeys(others[:num], "comp_test") | dict.fromkeys(others[num : 2 * num], "comp_dev")
    split: dict[str, list[int]] = {"train": [], "iid_dev": [], "iid_test": [], "comp_dev": [], "comp_test": []}
    for row, template in enumerate(templates):
        split[part.get(template, "train")].append(row)
    seen = rng.permutation(split["train"]).tolist()
    num_test = round(iid_share * len(seen))
    num_dev = round(iid_share * (len(seen) - num_test))
    split["iid_test"], split["iid_dev"] = sorted(seen[:num_test]), sorted(seen[num_test : num_test + num_dev])
    split["train"] = sorted(seen[num_test + num_dev :])
    if not split["train"]:
        raise ValueError("no row is left to train on: give more rows, or smaller shares")
    known = set(chain.from_iterable(names[row] for row in split["train"]))
    split["dropped"] = []
    for name in ("iid_dev", "iid_test", "comp_dev", "comp_test"):
        split["dropped"] += [row for row in split[name] if not known.issuperset(names[row])]
        split[name] = [row for row in split[name] if known.issuperset(names[row])]
    return split

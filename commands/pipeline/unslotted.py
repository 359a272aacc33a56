"""Which quoted strings of an experiment have no kind in its table of slots, so that models are trained on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from datamodules.turn import Turn
from doppel.grammar.slot_table import SlotTable
from doppel.lispress.slots import SlotKinds, to_slots

#: Any quoted string, whatever is around it.
_ANY = SlotKinds({"any": ["*"]})
#: Share of the strings from which on they are told of.
_MANY = 0.05


def unslotted(turns: Iterable[Turn], table: SlotTable) -> str | None:
    """What the table leaves in the trees of public turns; None where it is little.

    A number is no name. A string that the utterance does not say is one that a program needs.

    Formal guarantees:
        The turns are those of the reference, which is public: nothing of the private ones is counted.

    Args:
        turns: Public turns.
        table: Of the experiment.
    """
    left: Counter[str] = Counter()
    num_said = 0
    for turn in turns:
        if turn.parse is None:
            continue
        said = {value.lower() for value in to_slots(turn.parse, turn.utterance, _ANY).values.values()}
        said = {v for v in said if re.search(rf"(?<!\w){re.escape(v)}(?!\w)", turn.utterance.lower())}
        said = {v for v in said if re.search(r"[^\W\d]", v)}
        slotted = to_slots(turn.parse, turn.utterance, table.kinds)
        kept = {value.lower() for value in to_slots(slotted.tree, "", _ANY).values.values()}
        num_said += len(said)
        left.update(said & kept)
    if left.total() <= _MANY * num_said:
        return None
    examples = ", ".join(f'"{text}"' for text, _ in left.most_common(3))
    return (
        f"{left.total() / num_said:.0%} of the quoted strings that the reference's requests say have no kind in the "
        f"table of slots, such as {examples}: models are trained on such strings as they are; if they are names, say "
        "where they stand in a table of your own, model.slots=FILE (docs/guide.md)"
    )

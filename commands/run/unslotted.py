"""Which quoted strings of an experiment models are trained on all the same: of no kind, or said in another form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from datamodules.turn import Turn
from doppel.grammar.slot_table import SlotTable
from doppel.lispress.slots import SlotKinds, slots_of, to_slots
from doppel.occurrences import Strings, fold

#: Any quoted string, whatever is around it.
_ANY = SlotKinds({"any": ["*"]})
#: Share of the strings from which on they are told of.
_MANY = 0.05


def unslotted(turns: Iterable[Turn], table: SlotTable) -> list[str]:
    """What the table leaves in public turns: sentences for the console, none where it is little.

    Of strings without a kind: a number is no name, and one that the utterance does not say is one that a program needs.
    Of strings with one: those that are slots of the tree alone, for the utterance says another form of them, or none.

    Formal guarantees:
        The turns are those of the reference, which is public: nothing of the private ones is counted.

    Args:
        turns: Public turns.
        table: Of the experiment.
    """
    left: Counter[str] = Counter()
    in_tree_alone: list[str] = []
    num_said = num_slots = 0
    for turn in turns:
        if turn.parse is None:
            continue
        quoted = to_slots(turn.parse, "", _ANY).values.values()
        said = {fold(one.string) for one in Strings(quoted).find(turn.utterance)}
        said = {v for v in said if re.search(r"[^\W\d]", v)}
        slotted = to_slots(turn.parse, turn.utterance, table.kinds)
        kept = {fold(value) for value in to_slots(slotted.tree, "", _ANY).values.values()}
        num_said += len(said)
        left.update(said & kept)
        num_slots += len(slotted.values)
        unsaid = slotted.values.keys() - set(slots_of(slotted.utterance, table.kinds))
        in_tree_alone += [slotted.values[slot] for slot in sorted(unsaid) if fold(slotted.values[slot]) not in said]
    told = []
    if left.total() > _MANY * num_said:
        examples = ", ".join(f'"{text}"' for text, _ in left.most_common(3))
        told.append(
            f"{left.total() / num_said:.0%} of the quoted strings that the reference's requests say have no kind in "
            f"the table of slots, such as {examples}: models are trained on such strings as they are; if they are "
            "names, say where they stand in a table of your own, model.slots=FILE (docs/guide.md)"
        )
    if in_tree_alone:
        examples = ", ".join(f'"{text}"' for text, _ in Counter(in_tree_alone).most_common(3))
        told.append(
            f"{len(in_tree_alone):,} of {num_slots:,} names in the reference's trees are not found in their request, "
            f"such as {examples}: they are slots of the tree alone, and where the request says another form of one, "
            "models are trained on that"
        )
    return told

"""What ε does not cover of the weights that a private training starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from doppel.privacy.ledger import Ledger
from doppel.privacy.private_step import PrivateTrainingError


def notes_on_origins(ledger: Ledger, scope: str, origins: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Caveats for the ledger on what weights come from, each with whether it voids the scope.

    Formal guarantees:
        ε of a training holds for any start that does not depend on its data. A start that was paid for is a release of
        its own, whose loss adds up with this one's: this ledger composes what it has paid for itself, and says where
        another one did. A start that nobody paid for must be public.

    Args:
        ledger: Of the training.
        scope: Its scope.
        origins: As a :class:`~lightning_modules.training.logical_batch_module.LogicalBatchModule` keeps them.

    Raises:
        PrivateTrainingError: One was trained on data that may be the private ones, or is not what its card tells of.
    """
    notes: list[tuple[str, bool]] = []
    for origin in origins:
        path, private, is_public = origin["path"], origin["private"], origin.get("is_public")
        is_paid = private is not None and ledger.unpaid_reason(private["sha256"], private["scope"]) is None
        if origin.get("is_changed"):
            raise PrivateTrainingError(
                f"the weights in {path} are not those that its privacy_card.json tells of, so nothing says what they "
                "have learnt: export them again, or start from public weights"
            )
        if private is None and is_public is False:
            raise PrivateTrainingError(
                f"{path}, which the training starts from (init_weights or base_model), was trained without privacy on "
                "data that nobody declared public, so no ε would cover what comes of it: train it on public data with "
                "data.is_public: true, or leave it out"
            )
        if private is None and is_public is None:
            text = (
                f"it starts from {path}, which was trained without privacy, and nothing says that its data were public"
            )
            notes.append((text, False))
        elif private is not None and not is_paid:
            text = f"it starts from {path}, whose private training another ledger has paid for: for the same people "
            notes.append((f"{text}the two add up", False))
            notes += [(f"it starts from {path}, and there: {caveat}", False) for caveat in origin.get("caveats", ())]
        elif private is not None and private["scope"] != scope:
            why = ledger.voids(private["scope"])
            notes += [(f"it starts from {path} of scope {private['scope']!r}: {text}", True) for text in why]
    return list(dict.fromkeys(notes))

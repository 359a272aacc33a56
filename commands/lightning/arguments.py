"""The parser of the commands that train."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from doppel.console.errors import NearestKey
from doppel.errors import UserError
from doppel.privacy.spec import PrivacyArguments

PRIVACY = "callbacks.differential_privacy.DifferentialPrivacy"


class DoppelArgumentParser(NearestKey, LightningArgumentParser):
    """Lightning's parser without abbreviations, with errors that name the nearest key."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong, and how privacy is configured where a configuration does it as it was done before."""
        if PRIVACY in message:
            raise UserError(listed_privacy()) from ex
        old = re.search(r"Option '(\w+)' is not accepted", message)
        if old and "trainer.callbacks" in message and old[1] in {field.name for field in fields(PrivacyArguments)}:
            raise UserError(f"no callback has an argument {old[1]!r}: write --privacy.{old[1]}") from ex
        if "required: predict.data" in message:
            raise UserError(no_prompts("nothing")) from ex
        super().error(message, ex)


def listed_privacy() -> str:
    """Say what to write instead of the callback."""
    return (
        "trainer.callbacks lists DifferentialPrivacy: remove it there, and write its arguments below the key `privacy` "
        "at the top of the configuration, such as `privacy: {target_epsilon: 3.0}`; null is the run without privacy"
    )


def no_prompts(given: str) -> str:
    """Say what `predict` lacks without its overlay."""
    return (
        f"predict has {given} to write from: add --config configs/overlays/sample.yaml, which samples texts, or "
        "--config configs/overlays/annotate.yaml, with which a parser annotates utterances"
    )

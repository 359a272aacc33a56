"""The parser of the commands that train."""

from __future__ import annotations

from lightning.pytorch.cli import LightningArgumentParser

from doppel.console.errors import NearestKey


class DoppelArgumentParser(NearestKey, LightningArgumentParser):
    """Lightning's parser without abbreviations, with errors that name the nearest key."""

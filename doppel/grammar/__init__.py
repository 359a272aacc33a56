"""The embedded corpus: a synchronous grammar of English requests and Lispress programs, all our own."""

from datamodules.grammar.dialogue import generate

__all__ = ["generate"]

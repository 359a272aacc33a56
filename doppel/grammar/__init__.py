"""The embedded corpus: a synchronous grammar of English requests and Lispress programs, all our own."""

from doppel.grammar.dialogue import GeneratedTurn, generate

__all__ = ["GeneratedTurn", "generate"]

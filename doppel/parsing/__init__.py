"""Semantic parsing as a sequence of actions: vocabulary, oracle and state machine. No network lives here."""

from doppel.parsing.actions import Actions
from doppel.parsing.machine import ParserMachine
from doppel.parsing.oracle import encode
from doppel.parsing.vocabulary import ActionVocabulary

__all__ = ["ActionVocabulary", "Actions", "ParserMachine", "encode", "pieces_of"]

"""Redaction: which words of a text are hidden, and how much that hides, measured; it is no guarantee of privacy."""

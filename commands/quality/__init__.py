"""Judging samples and parsers, and choosing among setups."""

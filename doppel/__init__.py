"""Doppel's library: parse trees, privacy and metrics, free of Lightning."""

"""Decoding of many prompts with one model: rows that end make room for the next prompt."""

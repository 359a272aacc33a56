"""Gusain and Leith (2024), *Text redaction for privacy preserving model training*, measured: see README.md."""

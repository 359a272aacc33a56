"""Redaction: words are masked before anybody trains, and what that hides is measured. None of it is a guarantee."""

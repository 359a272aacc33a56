"""Data: fetched, split, weighed, tokenised."""

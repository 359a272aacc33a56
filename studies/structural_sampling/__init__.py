"""Oren et al. (2021), *Finding needles in a haystack*, measured: see README.md."""

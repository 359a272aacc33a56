"""Redaction: words are masked before anybody trains, and what that hides is measured. None of it is a guarantee.

Gusain and Leith (2024), *Plausible deniability of redacted text*: a sensitive set is redacted until it looks like a
safe one. Nothing of this room enters a ledger, and every ε of a text or a set is named an estimate. Word-level
mechanisms do add noise; what their ε means is another thing than elsewhere (:mod:`doppel.redaction.word_level`).

- `rank`: how much each word tells. `mask`: texts with masks in their place, with what `patterns` finds and
  `pseudonyms` in place of names.
- `word_level`: each word gives way to another (`feyisetan`, `santext`, `custext`; `mechanisms`: by name), over
  `word_vectors`.
- `attack`, `reconstruction`: what is still told, by a fresh classifier and by a public model that guesses the masks.
- `divergence`: how far two sets of vectors are apart (Rényi, KL), by their nearest neighbours, with duplicates.
- `comparison`: the same, corrected by what the estimate misses, with its null and its intervals.
- `neighbours`: the nearest neighbours that it asks for, each distinct vector once.
- `gaussian_reference`: normal sets as far apart as two sets are, which show what the estimate misses.
"""

"""Redaction: words are masked before anybody trains, and what that hides is measured. None of it is a guarantee.

Gusain and Leith (2024), *Plausible deniability of redacted text*: a sensitive set is redacted until it looks like a
safe one. Nothing of this room adds noise, so nothing of it enters a ledger, and every ε here is named an estimate.

- `divergence`: how far two sets of vectors are apart (Rényi, KL), by their nearest neighbours, with duplicates.
- `neighbours`: the nearest neighbours that it asks for, each distinct vector once.
- `shift`: normal sets as far apart as two sets are, which show what the estimate misses.
- `hull`: the ε that divergences of several orders would amount to, were they known; they are not.
- `closeness`: how alike the weights of two models are.
"""

"""Private evolution: a model that nobody trains writes texts, and private texts vote, under noise, for those near them.

AugPE (Xie et al., 2024, *Differentially private synthetic data via foundation model APIs 2: text*, arXiv 2403.01749),
after private evolution for images (Lin et al., 2024, arXiv 2305.15560). No private text reaches a generator: what it is
asked with is public, or was released.

- `candidates`: what a generator is asked with, and what it wrote.
- `population`: which candidates are chosen by their votes.
- `votes`: whom each private text votes for; what one unit can move.
- `budget`: the noise of several rounds, and whether votes will show above it.
- `evolve`: the rounds.
- `generators`: who writes texts: a grammar, a model in a folder, a server.
"""

"""Tables of attributes, and private rows like theirs.

- `schema`: the public values of each column, and how a row is read by them.
- `made`: values of a request itself, such as its number of words, in place of a cell.
- `asked`: the value that a language model finds likeliest for a text.
- `marginals`: how often values occur together, counted over units, exactly or with noise.
- `releases`: what leaves a private table, each paid for once.
- `mixture`: the model that is fitted to noisy marginals, and that rows are drawn from.
- `aim`: which marginals are measured: those that the model knows least.
- `independent`: each column by itself, to compare with.
"""

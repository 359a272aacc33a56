"""Who writes the texts of a population: a grammar, a model in a folder, a server.

- `protocol`: what each of them can do.
- `wording`: the words that a model is asked with.
- `reading`: the request that an answer holds, or why it holds none.
- `donations`: texts that were given to be shown to a model.
- `asking`: asks a model, and no question twice.
- `answers`: the answers on disk.
- `grammar`: the embedded grammar.
- `hugging_face`: a model in a folder.
- `server`: a server that speaks OpenAI's protocol.
- `limits`: what a server may be asked, and what that may cost.
"""

"""Tables of docs/results.md that are made of several runs or of public files: see README.md."""

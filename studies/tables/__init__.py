"""Tables of docs/results/details.md that are made of several runs or of public files: see README.md."""

"""Which synthetic rows to annotate or to train on: few, and different in structure; sheets for annotators."""

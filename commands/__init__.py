"""Tools that train nothing: each offers `add_arguments(parser)` and `run(args)`, and `cli.py` calls them."""

"""Train, sample and run experiments."""

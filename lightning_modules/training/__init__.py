"""Training by logical batches: the step, what a private run changes about it, precision and strategy."""

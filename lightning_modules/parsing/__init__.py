"""The network of the semantic parser: source encoders, the decoder of actions, greedy parsing."""

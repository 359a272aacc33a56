"""Models: the frozen base and its adapters, one loader, heads, encoders and judges of texts. Import its modules."""

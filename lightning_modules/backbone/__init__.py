"""The pretrained model: loading, adapters, weights of an earlier training, the loss of its head."""

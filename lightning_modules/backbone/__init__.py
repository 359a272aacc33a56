"""The pretrained model: loading, adapters, weights of an earlier training, the head fused with its loss."""

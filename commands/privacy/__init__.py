"""What is released of private data beside trained models, and what attacks a training."""

"""Shows where GPU memory goes in a PyTorch training."""

__version__ = "0.1.0"

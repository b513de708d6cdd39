"""Shows where GPU memory goes in a PyTorch training."""

from vramscope.measurement import Measurement, measure

__all__ = ["Measurement", "measure"]
__version__ = "0.1.0"

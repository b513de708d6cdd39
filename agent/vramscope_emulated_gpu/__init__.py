"""An emulated GPU under PyTorch's own CUDA build: it counts memory, streams and events, and computes nothing. See README.md."""

"""The console script ``vramscope``. Being written here, together with ``cli/``."""

"""``python -m vramscope``: the command ``vramscope``, where its folder is not in ``PATH``."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("vramscope_server", run_name="__main__", alter_sys=True)

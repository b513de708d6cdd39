"""Runs cells in a real IPython kernel and prints their outputs as JSON. ``test_notebook_view.py`` installs what it needs."""

from __future__ import annotations

import json
import queue
import time
from typing import Any

from jupyter_client.manager import start_new_kernel

CELLS = (
    "%load_ext vramscope\nimport torch, time\nfirst = torch.empty(100 << 20, dtype=torch.uint8, device='cuda')",
    "%vram live",
    "second = torch.empty(50 << 20, dtype=torch.uint8, device='cuda'); time.sleep(3)",
    "%vram stop",
)
PATIENCE_S = 60


def outputs(client: Any, cell: str) -> list[tuple[str, str]]:
    """Kind and text of all outputs until the kernel has run the cell."""
    asked, found, until = client.execute(cell), [], time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        kind, content = message["msg_type"], message["content"]
        text = content.get("data", {}).get("text/plain") or content.get("text") or content.get("evalue")
        if text is not None and kind != "execute_input":
            found.append((kind, text))
        is_own = message["parent_header"].get("msg_id") == asked
        if kind == "status" and content["execution_state"] == "idle" and is_own:
            return found
    raise TimeoutError(cell)


if __name__ == "__main__":
    manager, client = start_new_kernel()
    try:
        print(json.dumps([outputs(client, cell) for cell in CELLS]))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

"""Fixtures of the dry runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from vramscope_server.cli.local_server import server_at

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server for the dry runs of all files: to start one takes 3 s of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VRAMSCOPE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        address = f"http://127.0.0.1:{free_port()}"
        with server_at(address, "The test") as used:
            assert used.is_temporary
            patch.undo()
            yield address

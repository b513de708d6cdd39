"""Attacks: what the server and the agent withstand. Each has a short form for CI, and a long one with the marker ``slow``."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "golden")
)  # tests are imported by path: neighbours are not a package
sys.path.insert(0, str(Path(__file__).parents[1] / "pages"))
sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))
sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
sys.path.insert(0, str(Path(__file__).parent))

from databases import database_kind, database_url, migrated_file, migrated_postgres, postgres  # noqa: F401 - fixtures
from running import RunningServer


@pytest.fixture
def choice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test. A failure shows the seed; ATTACK_SEED repeats it."""
    seed = int(os.environ.get("ATTACK_SEED") or random.SystemRandom().randrange(10**6))
    print(f"ATTACK_SEED={seed}")
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Servers as many as a test wants; all are stopped at its end."""
    running: list[RunningServer] = []

    def start(data_dir: Path | None = None, **settings: Any) -> RunningServer:
        running.append(RunningServer(data_dir or tmp_path / f"data{len(running)}", **settings))
        return running[-1]

    yield start
    for server in running:
        if server.thread.is_alive():
            server.stop()

"""Names that the plugin and the child process of a test share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

MARKER: Final = "gpu_memory"
"""Name of the marker, and of the fixture."""
UPDATE: Final = "--gpu-memory-update"
REPORT: Final = "--gpu-memory-report"
CHILD: Final = "VRAMSCOPE_PYTEST_REPORT"
"""Variable with the file to which the child process writes its measurement."""


def mark_of(item: pytest.Function) -> pytest.Mark | None:
    """Return the marker of a test; that without arguments if it has the fixture only. None: it runs as any other test."""
    mark = item.get_closest_marker(MARKER)
    return pytest.mark.gpu_memory.mark if mark is None and MARKER in item.fixturenames else mark


def skip_file(report: Path) -> Path:
    """File with the reason, if the test skipped itself in the child process."""
    return report.with_suffix(".skipped")

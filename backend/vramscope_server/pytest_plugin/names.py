"""Names that the plugin and the child process of a test share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MARKER: Final = "gpu_memory"
CHILD: Final = "VRAMSCOPE_PYTEST_REPORT"
"""Variable with the file to which the child process writes its measurement."""


def skip_file(report: Path) -> Path:
    """File with the reason, if the test skipped itself in the child process."""
    return report.with_suffix(".skipped")

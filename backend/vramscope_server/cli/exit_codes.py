"""Exit codes of the commands. 0 is success."""

from __future__ import annotations

from typing import Final

CHECK_FAILED: Final = 1
BAD_ARGUMENTS: Final = 2
NOT_FOUND: Final = 3
NO_SERVER: Final = 4
NOT_TRUSTWORTHY: Final = 5
"""Code of a dry run whose result rests on values that do not exist."""

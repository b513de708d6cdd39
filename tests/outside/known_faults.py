"""Programs whose answer is not right yet, with the score that they get. Whoever mends one removes its line."""

from __future__ import annotations

from typing import Final

KNOWN_FAULTS: Final[dict[str, str]] = {}

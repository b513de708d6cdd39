"""Makes text safe in CSV files that a spreadsheet opens: users choose the names of runs and files."""

from __future__ import annotations

from typing import Any, Final

_RISKY: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of formulas, the full-width ones of East Asian spreadsheets included."""


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV writer. An apostrophe precedes text that looks like a formula; unknown is empty."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_RISKY) else value

"""Saving of a remedy in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramscope_server.analysis.number_format import amount


def saving_words(remedy: Mapping[str, Any], error: Mapping[str, Any], unknown: str = "unknown") -> str:
    """Describe what a remedy saves. Takes the remedy and its error as the API answers them.

    A remedy that is enough saves at least the excess. A larger device saves nothing: it has more.
    """
    saves = remedy["saves_bytes"]
    if remedy.get("card_bytes") is not None and saves is not None:
        return f"{amount(saves)} more"
    if saves is None and remedy["enough"] and (excess := excess_bytes(error)) > 0:
        return f"at least {amount(excess)}"
    return amount(saves, unknown)


def excess_bytes(error: Mapping[str, Any]) -> int:
    """Bytes by which the least need of the step exceeds what PyTorch can use; 0 if it does not, or is not known."""
    need, room = error["needed_least_bytes"], error["room_bytes"]
    return 0 if need is None or room is None else max(0, int(need - room))

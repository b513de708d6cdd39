"""Keyword arguments of a running call, read from the bytecode of its line."""

from __future__ import annotations

import sys
from typing import Any

from vramscope.techniques.checkpoint_regions import _call_has_keyword


def asked(*_: Any, **__: Any) -> bool:
    return _call_has_keyword(sys._getframe(1), "use_reentrant")


def test_only_the_running_calls_keywords_are_detected() -> None:
    mapping: dict[str, Any] = {"other": 1}
    assert asked(1, use_reentrant=False)
    assert not asked(1, other=2)
    assert not asked((1, "use_reentrant"))
    assert asked(int("3", base=4), use_reentrant=asked(2)), "others are called on the way to it"
    str(asked(1, use_reentrant=True)), str(asked)
    assert not asked(2), "what a call before it named is forgotten"
    assert asked(1, **mapping), "it may be in there: nothing is accused"

"""References that the count itself adds to ``sys.getrefcount``. They depend on the version of Python.

From Python 3.14 on, a call borrows the reference of the caller's variable, so that it adds none.
"""

from __future__ import annotations

import sys
from typing import Any, Final


def _count_variable() -> int:
    thing = object()
    return sys.getrefcount(thing)


def _count_argument() -> int:
    thing = object()
    return _references(thing) - 1


def _references(thing: Any) -> int:
    return sys.getrefcount(thing)


OF_VARIABLE: Final = _count_variable()
"""References to a variable's object without another owner, as ``sys.getrefcount`` of the variable counts them."""
OF_ARGUMENT: Final = _count_argument()
"""References that a function counts of its argument, besides those of the caller. The caller has it in a variable."""

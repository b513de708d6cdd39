"""Base class of all changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vramscope.process.patching import Patches
from vramscope.protocol.dry_run import ChangeName, ChangeOutcome


class Change:
    """One change. It is installed before the program makes its first model, and begins with its first optimizer."""

    name: ChangeName
    reason = "nothing that it could change was used"
    """Reason why nothing was changed."""

    def __init__(self) -> None:
        self.patches = Patches()
        self._changed: list[str] = []
        self._lines: list[str] = []

    def install(self) -> None:
        """Patch what the program uses before its first optimizer."""

    def begin(self) -> None:
        """Handle the creation of the first optimizer: begin to watch the steps."""

    def applied(self, what: str, *lines: str) -> None:
        """Note the changed object, and the lines of code that make the same change in the program."""
        self._changed += [what] * (what not in self._changed)
        self._lines += [line for line in lines if line not in self._lines]

    def outcome(self) -> ChangeOutcome:
        """Return whether the change was applied, or the reason why not. Called once, after the last step."""
        changed = bool(self._changed)
        text = ", ".join(self._changed) if changed else self.reason
        return ChangeOutcome(name=self.name, applied=changed, text=text, lines=self._lines if changed else [])


@dataclass(frozen=True)
class Call:
    """Arguments of a call of a function, by name."""

    bound: inspect.BoundArguments

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Bind the arguments. Raises TypeError as the call would."""
        return cls(inspect.signature(function).bind(*args, **kwargs))

    def __getitem__(self, name: str) -> Any:
        """Return an argument, or its default."""
        given, parameters = self.bound.arguments, self.bound.signature.parameters
        return given[name] if name in given else parameters[name].default

    def __setitem__(self, name: str, value: Any) -> None:
        self.bound.arguments[name] = value

    def to(self, function: Callable[..., Any]) -> Any:
        """Call the function with the arguments."""
        return function(*self.bound.args, **self.bound.kwargs)

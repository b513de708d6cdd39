"""What autograd's nodes have saved for their backward, read so that nobody's hook runs.

PyTorch 2.10 lets it be read as it lies (``SavedTensor.data``). Before, there is only the way that a backward takes, and that runs
the unpack hook where one was set: a checkpoint's recomputes its block, an offload's copies back from the host. Such hooks are
set on all that is saved while a pair of them is active. So the start and end of a pair are watched, and what was saved
in between is left unread: its bytes are missing, as they are of what was saved before anybody listened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from vramscope.guard import guarded
from vramscope.process.patching import Patches

RAW: Final = "_raw_saved"
MOST_STAYS: Final = 4096
"""Maximum number of hook intervals that are remembered. What was saved in earlier ones is not read."""

Stay = tuple[int, int]
"""Autograd's sequence numbers at the start and the end of a pair of hooks."""


class Hooked:
    """Which operations' saved tensors may be behind hooks, by autograd's sequence numbers. Each thread of autograd's has numbers
    of its own: what was hooked on one is taken to be hooked on all.

    sequence   the number of the operation that comes next, on the thread that asks
    """

    def __init__(self, sequence: Callable[[], int]) -> None:
        self._sequence = sequence
        self._known_from = sequence()
        self._standing: dict[int, list[int]] = {}
        """By thread, the sequence numbers at which the active pairs began."""
        self._stays: deque[Stay] = deque()
        self._merged: list[Stay] | None = []

    def put_up(self) -> None:
        """A pair of hooks stands, on this thread. 0.3 µs."""
        self._standing.setdefault(get_ident(), []).append(self._sequence())

    def taken_down(self) -> None:
        """The newest pair is gone."""
        standing = self._standing.get(get_ident())
        if not standing:
            return  # it was put up before anybody listened
        self._stays.append((standing.pop(), self._sequence()))
        if len(self._stays) > MOST_STAYS:
            self._known_from = max(self._known_from, self._stays.popleft()[1])
        self._merged = None

    def forget(self) -> None:
        """Of what is saved so far anything may be behind a hook."""
        self._known_from = max(self._known_from, self._sequence())

    def may_hide(self, number: int) -> bool:
        """Whether what this operation saved may be behind a hook."""
        if number < self._known_from or any(number >= since for at in self._standing.values() for since in at):
            return True
        if self._merged is None:
            self._merged = merged(self._stays)
        place = bisect_right(self._merged, (number, 1 << 62))
        return place > 0 and number < self._merged[place - 1][1]


def merged(stays: deque[Stay]) -> list[Stay]:
    """In order, those that overlap or touch as one."""
    found: list[Stay] = []
    for since, until in sorted(stays):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((since, until))
    return found


class SavedTensors:
    """Reads them. One a process: :data:`saved`.

    as_it_lies   whether PyTorch lets them be read as they lie; None: as this PyTorch does
    """

    def __init__(self, as_it_lies: bool | None = None) -> None:
        self._names: dict[type, tuple[str, ...]] = {}
        self._hooked: Hooked | None = None
        self._lie_open = as_it_lies
        self._patches = Patches()

    def listen(self) -> None:
        """Start watching hooks, if that is needed. A second call does nothing."""
        import torch

        native = torch._C._autograd
        if self._lie_open is None:
            self._lie_open = hasattr(native.SavedTensor, "data")
        if self._lie_open or self._hooked is not None:
            return
        self._hooked = hooked = Hooked(native._get_sequence_nr)
        if _hooks_stand(native):
            hooked.put_up()
        put_up = guarded("saved tensors' hooks")(hooked.put_up)
        taken_down = guarded("saved tensors' hooks")(hooked.taken_down)
        forget = guarded("saved tensors' hooks")(hooked.forget)

        def push(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            put_up()
            return original(*args, **kwargs)

        def pop(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            taken_down()
            return answer

        def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            forget()  # it is set to something that is saved already, and nobody says to what
            return original(*args, **kwargs)

        self._patches.wrap(native, "_push_saved_tensors_default_hooks", push)
        self._patches.wrap(native, "_pop_saved_tensors_default_hooks", pop)
        self._patches.wrap(native.SavedTensor, "register_hooks", hook)

    def close(self) -> None:
        """Stop watching hooks. Nothing that a hook could be set on is read any more."""
        self._patches.remove()
        self._hooked = None

    def of(self, node: Any, number: int) -> list[Any]:
        """What a node saved, as far as it may be read. ``number``: of its operation."""
        if self._lie_open is None:
            self.listen()
        kind = type(node)
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = self._names_of(kind)
        if not self._lie_open and (self._hooked is None or self._hooked.may_hide(number)):
            return []
        found: list[Any] = []
        for name in names:
            try:
                value = getattr(node, name)
            except RuntimeError:
                continue  # freed by a backward; before 2.10 also: changed in place since it was saved
            if not self._lie_open:
                found.append(value)
                continue
            for packed in value if isinstance(value, (list, tuple)) else (value,):
                found.append(_as_it_lies(packed))
        return found

    def _names_of(self, kind: type) -> tuple[str, ...]:
        import torch

        raw = [name for name in dir(kind) if name.startswith(RAW)]
        if self._lie_open:
            return tuple(raw)
        if issubclass(kind, torch.autograd.function.BackwardCFunction):
            return ("saved_tensors",)
        return tuple("_saved" + name.removeprefix(RAW) for name in raw)


def _hooks_stand(native: Any) -> bool:
    """Whether a pair of hooks is up on this thread: to switch hooks off is refused then."""
    if not native._saved_tensors_hooks_is_enabled():
        return False
    try:
        native._saved_tensors_hooks_disable("vramscope asks whether there are any")
    except RuntimeError:
        return True
    finally:
        native._saved_tensors_hooks_enable()  # the hooks are also off where they were refused
    return False


def _as_it_lies(packed: Any) -> Any:
    """The stored object of a SavedTensor; None where it was freed, or where only a hook of the user's could say."""
    try:
        return packed.data
    except (AttributeError, RuntimeError):
        return None


saved: Final = SavedTensors()

"""Listens to the calls of the user's modules, without a hook in any of them.

The watched function is ``torch.nn.Module._call_impl``, which each call passes (watched_calls.py). So modules are pickled,
copied, exported and listed as before, and no global hook of PyTorch is set. A call of an unwatched module costs 0.1 µs.

"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.process import watched_calls

if TYPE_CHECKING:
    import torch


class CallListener(NamedTuple):
    """Callbacks for the calls of modules. None of them may raise.

    before   (module, args, kwargs)
    after    (module, args, output)
    failed   (module): its forward raised an error, which ``sys.exc_info()`` has

    """

    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
    after: Callable[[Any, tuple[Any, ...], Any], None] | None = None
    failed: Callable[[Any], None] | None = None


class _All:
    """Container of all identities."""

    def __contains__(self, item: object) -> bool:
        return True


class ModuleCalls:
    """Listeners to the calls of single modules, and to those of all. One for the process: :data:`module_calls`."""

    def __init__(self) -> None:
        self._calls: watched_calls.Calls | None = None
        self._of: dict[int, tuple[CallListener, ...]] = {}
        """Listeners by the module's identity."""
        self._known: dict[int, weakref.ref[Any]] = {}
        self._of_all: tuple[CallListener, ...] = ()
        self._is_paused = False
        self._is_compiling: Callable[[], bool] = lambda: False
        self._is_tracing: Callable[[], bool] = lambda: False

    def listen(self, module: torch.nn.Module, listener: CallListener) -> Callable[[], None]:
        """Listen to the calls of one module. Returns a function that ends this; the module's end does too. Retains no
        module."""
        ident = id(module)
        if ident not in self._of:
            self._known[ident] = weakref.ref(module, lambda _: self._forget(ident))
        self._of[ident] = (*self._of.get(ident, ()), listener)
        self._update()

        def end() -> None:
            # Another module may have the same id by now.
            left = tuple(one for one in self._of.get(ident, ()) if one is not listener)
            if left:
                self._of[ident] = left
            else:
                self._forget(ident)

        return end

    def listen_to_all(self, listener: CallListener) -> Callable[[], None]:
        """Listen to the calls of all modules. Returns a function that ends this. Some µs a call."""
        self._of_all = (*self._of_all, listener)
        self._update()

        def end() -> None:
            self._of_all = tuple(one for one in self._of_all if one is not listener)
            self._update()

        return end

    def pause(self) -> None:
        """Call no listener until :meth:`resume`."""
        self._is_paused = True
        self._update()

    def resume(self) -> None:
        """Call the listeners again."""
        self._is_paused = False
        self._update()

    @property
    def listens(self) -> bool:
        """True if there is a listener for any module."""
        return bool(self._of or self._of_all)

    @property
    def listens_to_all(self) -> bool:
        return bool(self._of_all)

    def _forget(self, ident: int) -> None:
        self._of.pop(ident, None)
        self._known.pop(ident, None)
        self._update()

    def _update(self) -> None:
        wants = bool(self._of or self._of_all)
        if wants and self._calls is None:
            self._install()
        if self._calls is not None:
            self._calls.wanted = () if self._is_paused else _All() if self._of_all else self._of
            if not wants:
                self._calls.restore()
                self._calls = None

    def _install(self) -> None:
        import torch

        self._is_compiling = torch.compiler.is_compiling
        self._is_tracing = torch._C._is_tracing
        calls = self._calls = watched_calls.Calls()
        calls.watchers.append(watched_calls.Watcher(self._before, self._after, self._failed))
        calls.changed()
        # ``__call__`` itself stays: PyTorch's profiler recognises it by its code.
        watched_calls.install(torch.nn.Module, "_call_impl", calls, for_wanted=True)

    def _before(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self._is_compiling() or self._is_tracing():  # torch.jit would record reads of a tensor's attributes
            return None
        for listener in self._of_all:
            listener.before(module, args, kwargs)
        for listener in self._of.get(id(module), ()):
            listener.before(module, args, kwargs)
        return module, args

    def _after(self, call: Any, output: Any) -> None:
        if call is None or self._is_compiling():
            return
        module, args = call
        for listener in (*self._of.get(id(module), ()), *self._of_all):
            if listener.after is not None:
                listener.after(module, args, output)

    def _failed(self, call: Any) -> None:
        if call is None or self._is_compiling():
            return
        for listener in (*self._of.get(id(call[0]), ()), *self._of_all):
            if listener.failed is not None:
                listener.failed(call[0])


module_calls: Final = ModuleCalls()

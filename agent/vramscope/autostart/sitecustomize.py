"""Run by Python at start-up in every process under ``vramscope run``: attaches where, and when, a training begins.

Most of those processes train nothing (pip, compile workers, data loaders, the launcher itself), and many have no torch.
So this file stands on the standard library alone, imports next to nothing, and waits: when ``torch.optim.optimizer`` was
imported it wraps ``Optimizer.__init__``; when the first optimizer was made it takes the wrapper off and attaches. That is
before the first step, so no peak is missed, and nobody who only imports torch becomes a run.

A session that the script attached itself is left alone: ``attach()`` then gives back the one that runs.
"""

import os
import sys

TYPE_CHECKING = False  # typing itself would cost every process some milliseconds
if TYPE_CHECKING:
    from typing import Any


class _WaitForOptimizers:
    """A finder that finds nothing itself, but lets us know when ``torch.optim.optimizer`` has been imported."""

    MODULE = "torch.optim.optimizer"

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != self.MODULE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _after_import(spec.loader)
                return spec
        return None


def _after_import(loader: "Any") -> None:
    """Let the loader call us when it has run the module; the loader itself stays what it is."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        run(module)
        _attach_at_first_optimizer(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return  # a loader that allows no such thing: this process goes unwatched


def _attach_at_first_optimizer(module: "Any") -> None:
    optimizer_class = getattr(module, "Optimizer", None)
    if optimizer_class is None:
        return
    plain = optimizer_class.__init__
    waiting = True

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807
        nonlocal waiting
        plain(self, *args, **kwargs)
        # Behind it: what looks at all optimizers finds none that is half made.
        if waiting:
            waiting = False
            if optimizer_class.__init__ is __init__:
                optimizer_class.__init__ = plain
            _attach()

    __init__.__wrapped__ = plain  # type: ignore[attr-defined]
    __init__.__doc__ = plain.__doc__
    optimizer_class.__init__ = __init__


def _attach() -> None:
    try:
        from vramscope import agent
    except (ImportError, SyntaxError) as fault:
        # Another interpreter than the one of `vramscope run`, without the package.
        if sys.stderr is not None:
            sys.stderr.write(f"vramscope: not attached, since {sys.executable} cannot import it ({fault})\n")
        return
    agent.attach()


def _run_the_next_sitecustomize() -> None:
    """We stand first on the path and hide the one that this Python may have of its own."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would cost every process 5 ms
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if os.path.abspath(entry) != here])  # noqa: PTH100
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("VRAMSCOPE_DISABLED", "").strip().lower() not in ("1", "true", "yes", "on"):
    sys.meta_path.insert(0, _WaitForOptimizers())
_run_the_next_sitecustomize()  # last: what it raises is Python's to report, as if we were not here

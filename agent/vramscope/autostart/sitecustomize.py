"""Attaches the agent when a training begins. Python runs this file at start-up in every process under ``vramscope run``.

Most of those processes train nothing (pip, compile workers, data loaders, the launcher itself), and many have no torch. So
this file uses only the standard library, imports almost nothing, and waits. When ``torch.optim.optimizer`` was imported it
watches ``Optimizer.__init__``, ``torch.autograd.backward`` and ``torch.autograd.grad``. When the first optimizer was made, or
where there is none the first backward pass begins, it stops watching and attaches. That is before the first step, so that no
peak is missed, and a process that only imports torch becomes no run. One that runs out of device memory before is attached
when it fails. Where the command itself only calls models on a GPU, it is attached after some calls (process/inference_calls.py).

If the script attaches by itself, ``attach()`` here returns the session that runs already.

"""

import os
import sys

TYPE_CHECKING = False  # importing typing would cost every process some milliseconds
if TYPE_CHECKING:
    from typing import Any


class _WaitForOptimizers:
    """An import finder that finds nothing itself, but detects the import of ``torch.optim.optimizer``."""

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
    """Call :func:`_attach_when_training_begins` when the loader has run the module; the loader itself does not change."""
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        run(module)
        if os.environ.get("VRAMSCOPE_DRY_RUN_FOLDER"):
            _watch_reads()
        _attach_when_training_begins(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return  # a loader that cannot be changed: no agent in this process


def _attach_when_training_begins(module: "Any") -> None:
    """Attach at the first optimizer or backward pass, or when an out-of-memory error ends the program before."""
    optimizer_class = getattr(module, "Optimizer", None)
    autograd = sys.modules.get("torch.autograd")
    if optimizer_class is None:
        return
    make: Any = optimizer_class.__init__
    report: Any = sys.excepthook
    waiting = True

    def begin() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            if optimizer_class.__init__ is __init__:
                optimizer_class.__init__ = make
            for restore in restores:
                restore()
            if sys.excepthook is excepthook:
                sys.excepthook = report
            _attach()

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807
        make(self, *args, **kwargs)
        begin()  # after it, so that the agent finds no incomplete optimizer

    def excepthook(kind: "Any", error: "Any", trace: "Any") -> None:
        ours = sys.excepthook is excepthook
        if waiting and kind.__name__ == "OutOfMemoryError":
            begin()
            if ours and sys.excepthook is not report:
                sys.excepthook(kind, error, trace)  # the agent's, which passes the error on
                return
        report(kind, error, trace)

    __init__.__wrapped__ = make  # type: ignore[attr-defined]
    __init__.__doc__ = make.__doc__
    optimizer_class.__init__ = __init__

    def uses_gpu() -> None:
        if waiting and _is_the_command():  # not in a forked child
            try:
                from vramscope.process import inference_calls
            except (ImportError, SyntaxError):
                return  # another interpreter: _attach reports it when a training begins
            restores.append(inference_calls.listen(begin, _is_traced))

    restores = [_call_before(getattr(autograd, name, None), begin) for name in ("backward", "grad")]
    sys.excepthook = excepthook
    # PyTorch's queue of what runs when CUDA is initialized. (Its function for that would read the program's source text.)
    queued = getattr(sys.modules.get("torch.cuda"), "_queued_calls", None)
    if isinstance(queued, list):
        queued.append((uses_gpu, []))


def _is_the_command() -> bool:
    """Whether this is the process that ``vramscope run`` started, or a rank that the command started with torchrun. Others may
    be helpers of a training, such as a server for its evaluations: without a training they are no run."""
    command = os.environ.get("VRAMSCOPE_COMMAND_PID")
    return command == str(os.getpid()) or ("TORCHELASTIC_RUN_ID" in os.environ and command == str(os.getppid()))


def _call_before(function: "Any", begin: "Any") -> "Any":
    """Call ``begin`` before a function, which stays the same object: Dynamo and other code know it by identity. Returns what
    restores it."""
    own = getattr(function, "__code__", None)
    if own is None or own.co_freevars:
        return lambda: None
    original: Any = type(function)(own, function.__globals__, own.co_name, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__

    def call(*args: "Any", **kwargs: "Any") -> "Any":
        if not _is_traced():
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            (begin if disable is None else disable(begin))()  # restores it
        return original(*args, **kwargs)

    def changed(*args: "Any", **kwargs: "Any") -> "Any":
        call: Any = "call"  # exchanged below: the code of another module's function has none of our variables
        return call(*args, **kwargs)

    constants = tuple(call if constant == "call" else constant for constant in changed.__code__.co_consts)
    code = changed.__code__.replace(
        co_consts=constants, co_name=own.co_name, co_filename=own.co_filename, co_firstlineno=own.co_firstlineno
    )

    def restore() -> None:
        if function.__code__ is code:
            function.__code__ = own
            function.__dict__.pop("__wrapped__", None)

    call.__code__ = call.__code__.replace(co_filename=own.co_filename)  # Dynamo compiles no file of PyTorch
    function.__code__ = code
    function.__wrapped__ = original  # its signature
    return restore


def _is_traced() -> bool:
    """Whether a compiler computes with fake tensors: it asks for gradients even where nobody trains."""
    core: Any = getattr(sys.modules.get("torch"), "_C", None)
    modes = getattr(core, "_TorchDispatchModeKey", None)
    return modes is not None and core._get_dispatch_mode(modes.FAKE) is not None


def _attach() -> None:
    try:
        from vramscope import agent
    except (ImportError, SyntaxError) as fault:
        # Another interpreter than the one of `vramscope run`, without the package.
        if sys.stderr is not None:
            sys.stderr.write(f"vramscope: not attached, because {sys.executable} cannot import it ({fault})\n")
        return
    agent.attach()


def _watch_reads() -> None:
    """Watch what a dry run reads from the emulated device, before its first model is made."""
    try:
        from vramscope.dry_run import process
    except ImportError:
        return  # the interpreter is another one: _attach reports it
    process.current()


def _report_error_of_dry_run() -> None:
    """Report the exception that ends a process of a dry run before PyTorch is imported, such as a missing module."""
    if getattr(sys, "last_value", None) is None or "vramscope.dry_run.process" in sys.modules:
        return
    try:
        from vramscope.dry_run import ending_error
    except ImportError:
        return  # another interpreter, without the package
    ending_error.report_alone()


def _run_the_next_sitecustomize() -> None:
    """Run the sitecustomize of this Python, if there is one: this file is first on the path and hides it."""
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
    if os.environ.get("VRAMSCOPE_DRY_RUN_FOLDER"):
        import atexit

        atexit.register(_report_error_of_dry_run)
_run_the_next_sitecustomize()  # last: Python reports its errors as usual

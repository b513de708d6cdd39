"""Programs in processes of their own that need not load PyTorch first: they are forked off a Python that has.

``import torch`` and an optimizer's first step take a process some nine seconds of CPU. Here one process takes them, has not
touched the GPU, and forks for each program: what is read once a process (allocator settings, the size of the emulated GPU,
VRAMSCOPE_*) is read in the child, from the child's environment. A program ends as in a Python of its own, exit code, exit
handlers and last words included; only what was loaded before it is not taken apart.

Run as a script, this file is that process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 1 << 20
LOADED = {
    # The first step of an optimizer loads _dynamo. With the others the agent loads in half the time.
    "training": ("httpx", "msgspec", "pynvml", "torch._dynamo"),
    "server": ("vramscope_server.cli.server", "psycopg", "alembic.command"),
}
"""What a process has imported before it forks."""


class Program:
    """A program that runs, with the part of subprocess.Popen that tests use."""

    def __init__(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        loaded: str = "training",
    ) -> None:
        """``loaded``: a name of LOADED, for what the program need not load."""
        self.args = ["-c", code]
        self.returncode: int | None = None
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        ended, their_end = os.pipe()
        fields = {"code": code, "arguments": list(arguments), "env": dict(env), "cwd": str(cwd or os.getcwd())}
        self.pid = _server(loaded).fork(fields, [their_out, their_err, their_end])
        for descriptor in (their_out, their_err, their_end):
            os.close(descriptor)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self._ended = ended

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self._returncode(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """As of subprocess.Popen; raises TimeoutExpired."""
        returncode = self._returncode(timeout)
        if returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return returncode

    def _returncode(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            data = os.read(self._ended, 64)
            assert data, "the process that forks has died"
            self.returncode = os.waitstatus_to_exitcode(int(data))
            os.close(self._ended)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to its standard output and error, when it has ended; raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        seen = ["", ""]

        def read(at: int) -> None:
            seen[at] = (self.stdout, self.stderr)[at].read()

        readers = [threading.Thread(target=read, args=(at,), daemon=True) for at in (0, 1)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:  # a child of its own may hold the pipe longer
            reader.join(None if deadline is None else max(0.1, deadline - time.monotonic()))
        if any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return seen[0], seen[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(30)


def run(
    code: str,
    *,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 150.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as subprocess.run with ``capture_output`` does. Raises TimeoutExpired, and ends it."""
    program = Program(code, arguments=arguments, env=os.environ if env is None else env, cwd=cwd)
    try:
        out, err = program.communicate(timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    return subprocess.CompletedProcess(program.args, program.wait(), out, err)


# ---- the process that forks, from outside ----


class _Server:
    def __init__(self, loaded: str) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        for end in (self._ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(theirs.fileno()), loaded], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        atexit.register(self.close)

    def fork(self, answer: dict[str, Any], descriptors: list[int]) -> int:
        """The new process's id."""
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(answer).encode()], descriptors)
            return int(self._ours.recv(64))

    def close(self) -> None:
        self._ours.close()  # it ends when there is nobody to fork for
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


_started: dict[str, _Server] = {}
_starting = threading.Lock()


def _server(loaded: str) -> _Server:
    with _starting:
        if loaded not in _started:
            _started[loaded] = _Server(loaded)
        return _started[loaded]


# ---- and from inside ----


def serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns twice and more: in a child with its request, at the very end with None."""
    running: dict[int, tuple[int, int]] = {}  # what tells that a child has ended -> its id, where that is to be told
    while True:
        ready, _, _ = select.select([asked, *running], [], [])
        for ended in ready:
            if ended is asked:
                continue
            pid, told_at = running.pop(ended)
            status = os.waitpid(pid, 0)[1]
            with contextlib.suppress(BrokenPipeError):
                os.write(told_at, str(status).encode())
            os.close(ended)
            os.close(told_at)
        if asked not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(asked, _REQUEST_BYTES, 3)
        if not data:
            return None
        out, err, told_at = descriptors
        pid = os.fork()
        if not pid:
            for descriptor, number in ((out, 1), (err, 2)):
                os.dup2(descriptor, number)
            others = [number for ended, (_, number) in running.items() for number in (ended, number)]
            for descriptor in (*descriptors, *others):
                os.close(descriptor)
            asked.close()
            request: dict[str, Any] = json.loads(data)
            return request
        running[os.pidfd_open(pid)] = (pid, told_at)
        os.close(out)
        os.close(err)
        asked.send(str(pid).encode())


_streams: list[Any] = []
"""The streams of the process that forked: they would close the descriptors when they go."""


def become(answer: dict[str, Any]) -> dict[str, Any]:
    """Be the process that was asked for; the namespace of its program."""
    from types import ModuleType

    os.environ.clear()
    os.environ.update(answer["env"])
    os.chdir(answer["cwd"])
    _streams.extend([sys.stdout, sys.stderr])
    # The old ones know whether the file that they were made for can seek.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    sys.argv = ["-c", *answer["arguments"]]
    sys.path[0] = ""
    sys.modules["__main__"] = main = ModuleType("__main__")
    return main.__dict__


def spare(loaded: Sequence[str]) -> None:
    """The end of this process leaves these modules as they lie, and what C++ keeps for them. To take torch apart, object by
    object on pages that were shared until then, took a quarter of a second of CPU. What the program itself made and loaded goes
    as ever, after its exit handlers."""
    kept = {name: sys.modules.pop(name) for name in loaded if name in sys.modules}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    c = ctypes.CDLL(None)
    c.on_exit(c._exit, None)  # called first, when Python has ended
    # Before that, Triton lists on C's stderr what was not taken apart. Python's own stderr stays.
    c.fopen.restype = ctypes.c_void_p
    ctypes.c_void_p.in_dll(c, "stderr").value = c.fopen(os.devnull.encode(), b"w")


if __name__ == "__main__":
    _heavy: list[str] = []
    atexit.register(spare, _heavy)  # before what is imported registers its own: called last
    for _name in LOADED[sys.argv[2]]:
        importlib.import_module(_name)

    # Else each child's first collection would walk over them all, and copy every page that they lie in.
    gc.collect()
    gc.freeze()
    _heavy += [name for name in sys.modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "__main__"}]
    _asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if _asked is not None:
        exec(compile(_asked["code"], "<string>", "exec"), become(_asked))

"""A Python process that has imported PyTorch and pytest, and forks itself for each marked test.

The imports take most of a short test's time. This file runs as a script: it may not import vramscope, because pytest in the
forked process warns of plugins that were imported before it started.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any, Final

MODULES: Final = ("pytest", "torch", "torch._inductor")
"""What is imported before the first test. A snapshot of the allocator needs the last one to read Python stacks."""


def serve() -> None:
    """Run one test for each line of standard input, and print its exit code. Ends with the input.

    A line is a JSON object: ``words`` for pytest, the ``folder`` to start in, the ``environment``, and the file for ``output``.
    """
    for name in MODULES:
        importlib.import_module(name)
    # Else the first collection of each child would visit all objects of the modules, and copy every page of theirs.
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _become(request)
            import pytest

            sys.exit(pytest.main(request["words"]))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(request: dict[str, Any]) -> None:
    """Take over folder, environment and output of a test."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["pytest", *request["words"]]
    sys.path[0] = request["folder"]  # as "python -m pytest" has it; here it was the folder of this file


if __name__ == "__main__":
    serve()

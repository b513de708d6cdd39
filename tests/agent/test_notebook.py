"""``%load_ext vramscope`` and ``%%vram`` in a real IPython shell."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from vramscope.leaks.notebook_references import retained_by_notebook

MIB = 1 << 20

pytestmark = pytest.mark.gpu
PRELUDE = """
import torch
def megabytes(n):
    return torch.empty(n << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def shell(emulated_gpu: None) -> Iterator[InteractiveShell]:
    main = sys.modules["__main__"]  # the shell takes its place
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "vramscope")
    shell.run_cell(PRELUDE)
    yield shell
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main
    for name in ("last_traceback", "last_value", "last_exc", "last_type"):
        sys.__dict__.pop(name, None)
    gc.collect()


def test_a_cell_gets_its_peak_and_its_variables_stay(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("%%vram\nshort = megabytes(200)\ndel short\nkept = megabytes(8)\n")
    said = capsys.readouterr().out
    assert "200 MiB above the start; 8.00 MiB stay allocated" in said
    assert said.startswith("vramscope: peak ")
    assert shell.user_ns["kept"].numel() == 8 << 20
    shell.run_cell("%%vram 0\ndel kept\n")
    assert "8.00 MiB were freed" in capsys.readouterr().out


def test_what_the_notebook_itself_retains_is_named_with_how_to_release_it(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("[megabytes(30)]", store_history=True)
    shell.run_cell("def failing():\n    inner = megabytes(50)\n    raise ValueError('no')")
    shell.run_cell("failing()", store_history=True)
    capsys.readouterr()
    shell.run_cell("%%vram\npass\n")
    said = capsys.readouterr().out
    assert "inner of failing() in the last error retains 50.0 MiB" in said
    assert "] retains 30.0 MiB; release it with: get_ipython().displayhook.flush()" in said
    assert said.index("50.0 MiB;") < said.index("30.0 MiB;"), "the largest first"
    before = torch.cuda.memory_allocated()
    for one in list(retained_by_notebook(shell, MIB)):
        shell.run_cell(one.release, store_history=True)  # as a notebook does
    gc.collect()
    assert torch.cuda.memory_allocated() <= before - (80 << 20)
    assert not any(one.name.startswith("Out[") for one in retained_by_notebook(shell, MIB))


def test_a_cell_that_fails_shows_its_error_once_and_stops_what_follows(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    result = shell.run_cell("%%vram\nhigh = megabytes(20)\n1 / 0\n")
    out = capsys.readouterr()
    assert not result.success
    assert re.sub(r"\x1b\[[\d;]*m", "", out.out + out.err).count("ZeroDivisionError: division by zero") == 1
    assert "20.0 MiB above the start" in out.out
    assert isinstance(sys.last_value, ZeroDivisionError), "%debug still finds it"
    shell.run_cell("def failing():\n    inner = megabytes(50)\n    raise ValueError('no')")
    shell.run_cell("%%vram\nfailing()\n", store_history=True)
    (kept,) = [one for one in retained_by_notebook(shell, MIB) if one.name.startswith("inner of failing()")]
    before = torch.cuda.memory_allocated()
    shell.run_cell(kept.release, store_history=True)
    gc.collect()
    assert torch.cuda.memory_allocated() == before - (50 << 20)


def test_a_device_that_is_none_is_refused(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%%vram first\nnot_run = 1\n")
    assert "takes the index of a CUDA device, such as 0, and was given 'first'" in capsys.readouterr().out
    assert "not_run" not in shell.user_ns

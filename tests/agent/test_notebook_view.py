"""``%vram live`` in a real IPython shell, and at night in a real kernel."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from vramscope.notebook_chart import DeviceMemory, memory_chart
from vramscope.protocol.number_format import amount

pytestmark = pytest.mark.gpu
ALLOCATE = "import torch\nfirst = torch.empty(100 << 20, dtype=torch.uint8, device='cuda')"


@pytest.fixture
def shell(emulated_gpu: None) -> Iterator[Any]:
    gc.collect()
    main = sys.modules["__main__"]  # the shell takes its place
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher(parent=shell)
    yield shell
    shell.run_line_magic("vram", "stop")
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main
    gc.collect()


def allocated_with(more_mib: int) -> str:
    """What the view says when this is allocated besides what other tests have left."""
    return f"allocated {amount(torch.cuda.memory_allocated() + (more_mib << 20))}"


def texts(shell: Any) -> list[str]:
    return [output["data"]["text/plain"] for output in shell.display_pub.outputs]


def threads() -> int:
    return sum(thread.name == "vramscope-notebook" for thread in threading.enumerate())


def test_the_output_of_a_notebook_is_renewed_until_stop(shell: Any) -> None:
    shell.kernel = SimpleNamespace()
    first_words, second_words = allocated_with(100), allocated_with(150)
    shell.run_line_magic("load_ext", "vramscope")
    shell.run_cell(ALLOCATE)
    shell.run_line_magic("vram", "live 0")
    shell.run_cell("second = torch.empty(50 << 20, dtype=torch.uint8, device='cuda')")
    until = time.monotonic() + 60
    while not any(second_words in text for text in texts(shell)) and time.monotonic() < until:
        time.sleep(0.1)
    shell.run_line_magic("vram", "live")
    assert threads() == 1, "the older view has ended"
    shell.run_line_magic("vram", "stop")
    assert threads() == 0
    assert texts(shell)[0].startswith(f"GPU 0: {first_words}, peak ")
    assert texts(shell)[-1].endswith("(stopped)") and second_words in texts(shell)[-1]
    first, *others = shell.display_pub.outputs
    assert "<pre>GPU 0:" in first["data"]["text/html"] and others[0]["update"], "in the same place"
    drawn = others[-1]["data"]["text/html"]
    assert f'aria-label="{texts(shell)[-1].removesuffix(" (stopped)")}"' in drawn and "last 2 minutes" in drawn


def read_at(time_s: float, mib: int) -> DeviceMemory:
    return DeviceMemory(time_s, 0, mib << 20, 500 << 20, 2 * mib << 20, 1000 << 20)


def areas(readings: list[DeviceMemory]) -> tuple[str, str, str]:
    """The path of reserved and of allocated memory, and the line of the peak. Raises ParseError if a notebook cannot read it."""
    reserved, allocated, peak = (path.attrib["d"] for path in ElementTree.fromstring(memory_chart(readings)))
    return reserved, allocated, peak


def test_the_picture_holds_each_value_until_the_next_and_leaves_out_what_is_older() -> None:
    now = 1000.0
    reserved, allocated, peak = areas([read_at(now - 200, 400), read_at(now - 60, 100), read_at(now, 250)])
    # The highest value shown, 500 MiB, lies at a height of 1 / 1.1 of 96 pixels.
    assert allocated == "M240.0,96V78.5H480.0V52.4H480V96Z"
    assert reserved == "M240.0,96V61.1H480.0V8.7H480V96Z"
    assert peak == "M0,8.7H480"


def test_the_picture_of_a_single_reading_and_of_no_memory() -> None:
    nothing = DeviceMemory(5.0, 0, 0, 0, 0, 1 << 30)
    assert areas([nothing]) == ("M480.0,96V96.0H480V96Z",) * 2 + ("M0,96.0H480",)


def test_a_terminal_prints_once_and_begins_no_thread(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("load_ext", "vramscope")
    words_with_it = allocated_with(100)
    shell.run_cell(ALLOCATE)
    for words in ("", "live"):
        shell.run_line_magic("vram", words)
        assert words_with_it in capsys.readouterr().out
    assert threads() == 0 and texts(shell) == []
    for wrong in ("life", "live first", "stop 0"):
        shell.run_line_magic("vram", wrong)
        assert "write %vram live" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_a_real_kernel(emulated_gpu: None, tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "ipykernel", "jupyter_client"]
    subprocess.run(install, check=True)
    paths = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kernel_program.py"))],
        env=os.environ | {"PYTHONPATH": paths, "JUPYTER_DATA_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded, begun, allocated, stopped = json.loads(done.stdout.splitlines()[-1])
    assert loaded == [] and [kind for kind, _ in begun[:1]] in ([], ["display_data"])
    renewed = [text for kind, text in [*begun, *allocated] if kind == "update_display_data"]
    assert any("allocated 150 MiB" in text for text in renewed)
    assert [text for kind, text in stopped if kind == "update_display_data"][-1].endswith("(stopped)")

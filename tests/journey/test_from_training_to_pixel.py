"""The whole way in one test: a training that knows nothing of us, the agent, the server, the store, the browser's pixels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.gpu, pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(240)]

TRAINING = """
import json, sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(60):
    rows = 20_000 if step == 41 else 5_000     # one step is higher than all others
    model(torch.empty(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""

LEAKY = """
import time, torch
from torch import nn
torch.manual_seed(0)
def main():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    for step in range(80):
        out = model(torch.randn(1000, 256, device="cuda"))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out{fix})  # the line that is to be named
        del out
        time.sleep(0.02)
main()
"""

EVALUATED = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(60):
    model(torch.randn(2000, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn({rows}, 256, device="cuda"))
        model.train()
"""

VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]
PATIENCE_MS = 60_000


def vramscope(*words: str) -> str:
    done = subprocess.run([*VRAMSCOPE, *words], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(server: str, folder: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script under ``vramscope run``."""
    script = folder / "train.py"
    script.write_text(text)
    words = [*VRAMSCOPE, "run", "--server", server, "--project", "journey", "--name", name]
    env = {**os.environ, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool")}
    command = [*words, "--", sys.executable, str(script)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    browsers = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in browsers if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no chromium here: apt-get install -y chromium-headless-shell")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a profile of its own, which may not throw."""
    page = browser.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    yield page
    page.close()
    assert not faults


@pytest.fixture(scope="module")
def leaky_and_fixed(server: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two runs of these names, beside each other: one that leaks to its end, and one without the leak, which dies at its end."""
    fixed = LEAKY.replace("{fix}", ".detach().mean().item()") + 'raise RuntimeError("the data ran out")\n'
    scripts = {"leaky": LEAKY.replace("{fix}", ""), "fixed": fixed}
    # pytest's factory is not safe in threads: its first use empties the folder above.
    folders = {name: tmp_path_factory.mktemp(name) for name in scripts}
    with ThreadPoolExecutor() as threads:
        done = threads.map(lambda name: run(server, folders[name], name, scripts[name]), scripts)
        leaky, died = done
    assert leaky.returncode == 0, leaky.stderr
    assert died.returncode == 1 and "the data ran out" in died.stderr, died.stderr


def test_a_peak_goes_from_the_allocator_to_the_page_to_the_byte(server: str, page: Page, tmp_path: Path) -> None:
    done = run(server, tmp_path, "journey one", TRAINING)
    assert done.returncode == 0, done.stderr
    allocated, reserved = json.loads(done.stdout.strip().splitlines()[-1])

    shown = json.loads(vramscope("show", "journey one", "--json", "--server", server))
    assert shown["state"] == "finished"
    assert shown["steps"] == 60
    assert (shown["peak_allocated_bytes"], shown["peak_reserved_bytes"]) == (allocated, reserved)
    assert shown["peak_step"] == 42 and shown["peak_phase"] == "backward"

    steps = json.loads(vramscope("steps", "journey one", "--json", "--server", server))
    assert [row["step"] for row in steps] == list(range(1, 61))
    assert max(row["peak_allocated_bytes"] for row in steps) == allocated
    assert all(not row["foreign_reset"] for row in steps)

    from playwright.sync_api import expect

    page.goto(f"{server}/runs/{shown['run_id']}")
    figures = page.get_by_role("region", name="Key figures")
    expect(figures).to_contain_text(f"{allocated / 2**30:.2f} GiB", timeout=PATIENCE_MS)
    expect(figures).to_contain_text("step 42 · backward")
    page.locator("vs-chart").first.scroll_into_view_if_needed()
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=PATIENCE_MS)


@pytest.mark.usefixtures("leaky_and_fixed")
def test_a_leak_goes_from_a_line_of_the_script_to_the_page_and_is_gone_once_fixed(server: str, page: Page) -> None:
    line = 1 + LEAKY[: LEAKY.index("outputs.append")].count("\n")
    (leak,) = json.loads(vramscope("leaks", "leaky", "--json", "--server", server))
    assert (leak["name"], Path(leak["file"]).name, leak["line"]) == ("outputs", "train.py", line)
    assert leak["kind"] == "growing"
    assert leak["held_bytes"] >= leak["count"] * 1000 * 256 * 4, "each output at least"
    assert json.loads(vramscope("leaks", "fixed", "--json", "--server", server)) == []

    from playwright.sync_api import expect

    page.goto(f"{server}/runs/leaky/leaks")
    text = f"outputs (train.py:{line}) keeps the graphs"
    expect(page.locator(".verdict")).to_contain_text(text, timeout=PATIENCE_MS)
    page.locator("vs-chart").first.scroll_into_view_if_needed()
    floor = page.locator("vs-chart[data-figure=floor] .js-plotly-plot, vs-chart[data-draws]").first
    expect(floor).to_be_visible(timeout=PATIENCE_MS)
    page.goto(f"{server}/compare?runs=leaky,fixed")
    expect(page.locator(".compare-table tbody tr").nth(1)).to_contain_text("none", timeout=PATIENCE_MS)


@pytest.mark.usefixtures("leaky_and_fixed")
def test_a_run_that_dies_says_so_in_the_list_and_at_the_terminal(server: str) -> None:
    shown = json.loads(vramscope("show", "fixed", "--json", "--server", server))
    assert shown["state"] == "failed"
    rows = httpx.get(f"{server}/api/v1/runs", params={"state": "failed"}).json()["runs"]
    assert [(row["name"], row["error_type"], row["error_line"]) for row in rows] == [
        ("fixed", "RuntimeError", "the data ran out")
    ]


def test_a_peak_in_an_evaluation_is_told_with_the_batch_that_would_be_as_high_as_the_training(
    server: str, tmp_path: Path
) -> None:
    """And with that batch it is; then nothing is said of it."""

    def advice_on(rows: int) -> tuple[int, dict[str, Any]]:
        done = run(server, tmp_path, f"{rows} rows", EVALUATED.replace("{rows}", str(rows)))
        assert done.returncode == 0, done.stderr
        shown = json.loads(vramscope("show", f"{rows} rows", "--json", "--server", server))
        path = f"{server}/api/v1/runs/{shown['run_id']}/recordings"
        listed = httpx.get(path, timeout=60, trust_env=False).json()["recordings"]
        newest = next(one["recording"] for one in listed if one["whole"])
        answer = httpx.get(f"{server}/api/v1/recordings/{newest}/anatomy", timeout=170, trust_env=False).json()
        return shown["peak_allocated_bytes"], {one["rule"]: one for one in answer["advice"]}

    high, result = advice_on(20_000)
    advice = result["evaluation_batch"]
    assert advice["evidence"]["evaluation_peak_bytes"] == high
    assert advice["saves_bytes"] == high - advice["evidence"]["training_peak_bytes"]
    words = vramscope("show", "20000 rows", "--server", server)
    assert words.index("is in an evaluation") < words.index("for the recorded peak"), "first what is of the run"
    fewer = int(20_000 * advice["evidence"]["times_the_rows"])
    lower, result = advice_on(fewer)
    assert lower == pytest.approx(advice["evidence"]["training_peak_bytes"], rel=0.01)
    assert "evaluation_batch" not in result

"""Takes pictures of every page: two widths, two themes, with no data, a little, many runs and much. Writes one HTML sheet.

    python tests/pages/contact_sheet.py /tmp/sheet                          # all; some minutes on 2 cores
    python tests/pages/contact_sheet.py /tmp/sheet --scene little --page compare --width 400

Pictures are for people. Those that a test compares are made by ``page_pictures.py``, without the fonts of this machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "backend"))

import httpx
import sender
from conftest import CHROMIUM, FLAGS, RunningServer
from legibility import SETTLED
from snapshot_maker import file_of_stacks, two_sizes
from test_fragmentation_page import Sender
from test_oom_page import rich_box, sent
from waiting import eventually
from window_maker import training

from vramscope_server.cli.upload import upload_file

WIDTHS = {1440: 900, 400: 800}
THEMES = ("light", "dark")
TALLEST = 6000
"""Pixels of a picture at most: the rest of a very long page is left out."""


@dataclass(frozen=True)
class Scene:
    """Data of a server, and the address of each of its pages."""

    name: str
    server: RunningServer
    pages: dict[str, str]
    filled_seconds: float = field(default_factory=time.time)


def empty(server: RunningServer) -> dict[str, str]:
    """Addresses of pages of a server without runs."""
    return {
        "runs": "/runs",
        "compare": "/compare",
        "snapshots": "/snapshots",
        "settings": "/settings",
        "not found": "/no-such-page",
        "run not found": "/runs/no-such-run",
    }


def little(server: RunningServer) -> dict[str, str]:
    """Addresses of the pages of a handful of runs, one recording, one error and one snapshot."""
    sender.little(server.url)
    recorded = _recorded(server, "varying lengths", steps=3, layers=12)
    sent(server, sender.TOO_LARGE.run, rich_box("cccc000000000001", None))
    snapshot = _uploaded(server, "two-sizes.pickle", pickle.dumps(two_sizes()))
    run = sender.BASELINE.run
    chosen = ",".join(one.run for one in (sender.BASELINE, sender.CHECKPOINTING, sender.BF16))
    return {
        "runs": "/runs",
        "run": f"/runs/{run}",
        "run on a CPU": f"/runs/{sender.ON_CPU.run}",
        "failed run": f"/runs/{sender.TOO_LARGE.run}",
        "leaks": f"/runs/{sender.LEAKY.run}/leaks",
        "operations": f"/runs/{run}/operations",
        "anatomy": f"/runs/{recorded}/anatomy",
        "anatomy without a recording": f"/runs/{run}/anatomy",
        "fragmentation": f"/runs/{recorded}/fragmentation",
        "fragmentation without a recording": f"/runs/{run}/fragmentation",
        "out of memory": f"/runs/{sender.TOO_LARGE.run}/oom",
        "no out of memory": f"/runs/{run}/oom",
        "compare": f"/compare?runs={chosen}",
        "snapshots": "/snapshots",
        "snapshot": f"/snapshots/{snapshot}",
        "settings": "/settings",
    }


def many(server: RunningServer) -> dict[str, str]:
    """Addresses of the pages of 100 runs, more than a picture shows, of 16 ranks and of a live run, which sends no more."""
    sender.thousand(server.url, runs=100)
    sharded = sender.Training(name="fsdp-16", project="llama", ranks=16, run="f5d0000000000016", step_seconds=0.6)
    sender.past(server.url, sharded, hours=2, steps=200)
    live = sender.Training(name="live", run="11fe000000000001")
    steps = 600
    sender.Rank(server.url, live, start=time.time() - steps * live.step_seconds).history(steps)
    return {
        "runs": "/runs",
        "run of 16 ranks": f"/runs/{sharded.run}",
        "live run": f"/runs/{live.run}",
        "compare 50 runs": "/compare?runs=" + ",".join(f"5eeb{number:012x}" for number in range(50)),
    }


def much(server: RunningServer) -> dict[str, str]:
    """Addresses of the pages of an hour of samples, a long recording, repeats and a snapshot of many events."""
    long = sender.hour(server.url)
    recorded = _recorded(server, "many layers", steps=6, layers=96)
    snapshot = _uploaded(server, "many-events.pickle", file_of_stacks(200_000))
    seeds = [
        dataclasses.replace(
            of,
            name=f"{of.name} seed {seed}",
            run=f"{of.run[:14]}{seed:02d}",
            seed=seed,
            config={**of.config, "seed": seed},
        )
        for of in (sender.BASELINE, sender.CHECKPOINTING, sender.BF16)
        for seed in range(1, 5)
    ]
    repeats = ",".join(sender.past(server.url, one, hours=2, steps=60).run for one in seeds)
    return {
        "run": f"/runs/{long.run}",
        "anatomy": f"/runs/{recorded}/anatomy",
        "fragmentation": f"/runs/{recorded}/fragmentation",
        "compare repeats": f"/compare?runs={repeats}",
        "snapshots": "/snapshots",
        "snapshot": f"/snapshots/{snapshot}",
    }


def signed_out(server: RunningServer) -> dict[str, str]:
    """Address of the page that asks for a token."""
    return {"sign in": "/runs"}


SCENES: dict[str, tuple[Callable[[RunningServer], dict[str, str]], dict[str, Any]]] = {
    "empty": (empty, {}),
    "little": (little, {}),
    "many": (many, {"lost_after_seconds": 86400}),
    "much": (much, {}),
    "signed out": (signed_out, {"require_tokens": True}),
}


def _recorded(server: RunningServer, name: str, steps: int, layers: int) -> str:
    run = Sender(server.url, name)
    run.send(run.agent.samples(20), run.agent.steps(4))
    run.record(training(steps, layers))
    run.send(run.agent.ended())
    return str(run.agent.run)


def _uploaded(server: RunningServer, name: str, content: bytes) -> str:
    file = server.data_dir / name
    file.write_bytes(content)
    snapshot = upload_file(server.url, file, lambda sent, total: None)["snapshot"]

    def converted() -> bool:
        row = httpx.get(f"{server.url}/api/v1/snapshots/{snapshot}", trust_env=False).json()
        return bool(row["state"] in ("ready", "failed"))

    eventually(converted, 600, "the conversion")
    return snapshot


@contextmanager
def scene(name: str) -> Iterator[Scene]:
    """Fill a server for a scene; it stops at the end."""
    fill, settings = SCENES[name]
    with tempfile.TemporaryDirectory() as folder:
        server = RunningServer(Path(folder), **settings)
        try:
            yield Scene(name, server, fill(server))
        finally:
            server.stop()


def pictures(
    browser: Any, shown: Scene, folder: Path, chosen: argparse.Namespace
) -> Iterator[tuple[str, int, str, str]]:
    """Take the pictures of a scene, and give page, width, theme and file name of each."""
    for page_name, address in shown.pages.items():
        if chosen.page and not any(word in page_name for word in chosen.page):
            continue
        for width in chosen.width or WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": WIDTHS[width]})
            page.goto(shown.server.url + address)
            for _ in range(3):  # a chart that comes into sight is drawn, and makes the page longer
                page.wait_for_timeout(1200)
                height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
                page.set_viewport_size({"width": width, "height": max(height, WIDTHS[width])})
                eventually(lambda one=page: one.evaluate(SETTLED), 300, page_name)
            for theme in chosen.theme or THEMES:
                page.emulate_media(color_scheme=theme)
                page.wait_for_timeout(300)
                name = f"{shown.name} {page_name} {width} {theme}.png".replace(" ", "-")
                page.screenshot(path=folder / name, full_page=True)
                yield page_name, width, theme, name
            page.close()


STYLE = """body { font: 14px system-ui, sans-serif; margin: 20px } figure { display: inline-block; margin: 0 12px 12px 0;
vertical-align: top } img { border: 1px solid #8888; width: 480px } img.narrow { width: 200px }"""


def sheet(taken: list[tuple[str, str, int, str, str]]) -> str:
    """HTML of the pictures, a section for each scene and page."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Pages</title><style>{STYLE}</style><h1>Pages</h1>"
    ]
    before = None
    for scene_name, page_name, width, theme, file in taken:
        if (scene_name, page_name) != before:
            parts.append(f"<h2>{html.escape(page_name)}: {html.escape(scene_name)}</h2>")
        before = (scene_name, page_name)
        words = f"{width} pixels, {theme}"
        narrow = " class=narrow" if width < 1000 else ""
        parts.append(
            f'<figure><a href="{file}"><img{narrow} loading=lazy src="{file}" alt="{html.escape(page_name)}, {words}"></a>'
            f"<figcaption>{words}</figcaption></figure>"
        )
    return "\n".join(parts) + "</html>\n"


def main() -> None:
    """Write the pictures and ``index.html`` into a folder."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--scene", action="append", choices=list(SCENES), help="only these scenes")
    arguments.add_argument("--page", action="append", help="only pages whose name has one of these words")
    arguments.add_argument("--width", action="append", type=int, choices=list(WIDTHS))
    arguments.add_argument("--theme", action="append", choices=THEMES)
    chosen = arguments.parse_args()
    from playwright.sync_api import sync_playwright

    chosen.folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in chosen.scene or SCENES:
            with scene(name) as shown:
                taken += [(name, *one) for one in pictures(browser, shown, chosen.folder, chosen)]
        browser.close()
    (chosen.folder / "index.html").write_text(sheet(taken), encoding="utf-8")
    print(f"{len(taken)} pictures: {chosen.folder / 'index.html'}")


if __name__ == "__main__":
    main()

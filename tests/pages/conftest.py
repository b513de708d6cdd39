"""A real server, a real Chromium, and a sender that speaks the real wire."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

import sender
from waiting import PATIENCE_SECONDS

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Names of the browser; the first that exists is used. The shell has no windows and needs a quarter less CPU."""
CHROMIUM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # pages of all tests in one process: see ``profile``
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages' tests in two workers, each with one browser and one server: in one they would take longer than all else together."""
    here = Path(__file__).parent
    of_pages = [item for item in items if here in item.path.parents]
    files = sorted({item.path for item in of_pages})
    for item in of_pages:
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.xdist_group(f"browser-{files.index(item.path) % 2}"))


DELAY_SECONDS = float(os.environ.get("VRAMSCOPE_TEST_DELAY_SECONDS", "0"))
"""How late each answer of the servers to a GET is. A test that reads a page before it waited for its content fails then, and
not on a busy machine alone: ``VRAMSCOPE_TEST_DELAY_SECONDS=0.3 pytest tests/pages``."""


def delayed(app: Any) -> Any:
    """An ASGI application that answers a GET late."""

    async def late(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            await asyncio.sleep(DELAY_SECONDS)
        await app(scope, receive, send)

    return late


class RunningServer:
    """A server in a thread, that can be stopped and come back at the same address with the same data."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        self.settings = settings
        self.port = 0  # any at first, then the same again
        self.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        from vramscope_server.cli.server import listen, uvicorn_server
        from vramscope_server.services import Services
        from vramscope_server.settings import Settings

        listening = listen("127.0.0.1", self.port)
        self.port = listening.getsockname()[1]
        given = dict(self.settings)
        lost_after = {
            name: given.pop(name) for name in ("lost_after_seconds",) if name in given
        }  # shorter than users may set it
        services = Services(Settings(data_dir=self.data_dir, port=self.port, **given).model_copy(update=lost_after))
        self.first_token = services.first_token
        self.server = uvicorn_server(services)
        if DELAY_SECONDS:
            self.server.config.app = delayed(self.server.config.app)
        self.thread = threading.Thread(target=self.server.run, args=([listening],), daemon=True)
        self.thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.server.started:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.02)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that holds a handful of ended runs of all kinds."""
    running = RunningServer(tmp_path_factory.mktemp("server"))
    for training in sender.little(running.url):
        if training.name == sender.BASELINE.name:
            httpx.patch(
                f"{running.url}/api/v1/runs/{training.run}", json={"baseline": True}, trust_env=False
            ).raise_for_status()
    yield running
    running.stop()


@pytest.fixture
def own_servers(small_disk: Any) -> Iterator[list[RunningServer]]:
    """Servers of one test; stopped after its pages are closed, which would rightly complain otherwise."""
    made: list[RunningServer] = []
    yield made
    for running in made:
        if running.thread.is_alive():
            running.stop()


@pytest.fixture
def own_server(tmp_path: Path, own_servers: list[RunningServer]) -> Callable[..., RunningServer]:
    """Makes an empty server for one test, with settings of its own."""

    def make(folder: Path | None = None, **settings: Any) -> RunningServer:
        own_servers.append(RunningServer(folder or tmp_path / str(len(own_servers)), **settings))
        return own_servers[-1]

    return make


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install -y chromium-headless-shell")
    with playwright.sync_playwright() as driver:
        # launch() makes a profile folder of its own, every time
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield browser
        browser.close()


def output_of(message: Any) -> str:
    """Of a request that failed Chromium tells the answer alone: where it went belongs to it."""
    where = message.location.get("url", "")
    return f"{message.text} {where}" if "Failed to load" in message.text else str(message.text)


class Watcher:
    """What pages complained about: console errors, exceptions, breaches of the content-security policy, strangers."""

    def __init__(self, context: Any) -> None:
        self.complaints: list[str] = []
        self.expected: list[str] = []
        self.origins: set[str] = set()
        self.listeners = {"page": self.watch, "request": self.check_host}
        for event, listener in self.listeners.items():
            context.on(event, listener)

    def leave(self, context: Any) -> None:
        for event, listener in self.listeners.items():
            context.remove_listener(event, listener)

    def watch(self, page: Any) -> None:
        page.on("console", lambda message: message.type == "error" and self.note(output_of(message)))
        page.on("pageerror", lambda error: self.note(f"exception: {error}\n{error.stack}"))

    def check_host(self, request: Any) -> None:
        if request.url.startswith("http://127.0.0.1:"):
            self.origins.add("/".join(request.url.split("/", 3)[:3]))
        elif not request.url.startswith(("data:", "blob:")):
            self.note(f"request to elsewhere: {request.url}")

    def note(self, text: str) -> None:
        self.complaints.append(text)

    def unexpected(self) -> list[str]:
        return [text for text in self.complaints if not any(part in text for part in self.expected)]


@pytest.fixture(scope="session")
def profile(chromium: Any) -> Iterator[Any]:
    """The browser profile of all tests, 1440 by 900. One page of it stays open, and with it the process that draws the pages of
    every server here: what it has compiled of Plotly serves all, which is half of a page's CPU."""
    kept = chromium.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    kept.set_default_timeout(PATIENCE_SECONDS * 1000)
    staying = kept.new_page()
    staying.route("**", lambda route: route.fulfill(body=""))
    staying.goto("http://127.0.0.1/")  # (answered here)
    kept.add_init_script(
        "addEventListener('securitypolicyviolation', (event) =>"
        " console.error('CSP: ' + event.violatedDirective + ' ' + event.blockedURI))"
    )
    kept.staying, kept.storage = staying, kept.new_cdp_session(staying)
    yield kept
    kept.close()


@pytest.fixture
def context(profile: Any, own_servers: list[RunningServer], small_disk: Any) -> Iterator[Any]:
    """The profile, which remembers nothing of other tests and whose pages may not complain.

    Its pages are closed before their servers stop and before the disks of these are unmounted.
    """
    profile.watcher = watcher = Watcher(profile)
    yield profile
    for page in profile.pages:
        if page is not profile.staying:
            page.close()
    watcher.leave(profile)
    profile.clear_cookies()
    profile.clear_permissions()
    for origin in watcher.origins:
        profile.storage.send(
            "Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "local_storage,indexeddb"}
        )
    assert not watcher.unexpected(), watcher.unexpected()


@pytest.fixture
def page(context: Any) -> Any:
    return context.new_page()


@pytest.fixture
def live_run() -> Iterator[Callable[..., sender.Training]]:
    """Starts trainings that go on until the test ends."""
    stops: list[threading.Event] = []

    def start(running: RunningServer, **changes: Any) -> sender.Training:
        stops.append(threading.Event())
        return sender.live(running.url, stops[-1], **changes)

    yield start
    for stop in stops:
        stop.set()

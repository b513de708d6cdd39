"""Names with markup in every field that may have one, on every page: they are shown as text, and no script runs."""

from __future__ import annotations

import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from browsing import COMPILED_MS
from legibility import SETTLED
from waiting import eventually

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

import seeds
from hostile import MARKUP, with_markup, with_text
from wire_maker import Agent, new_id

from vramscope.protocol import messages, oom_record, profile, window
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.validation import prepare

SHOWN_AS = "<b>bold</b>"
"""Part of the markup that a page shows where it shows a name."""


def is_batch(tree: Any) -> bool:
    try:
        prepare(msgspec.msgpack.encode(tree), tree["sent_ns"])
    except BadBatch:
        return False
    return True


def is_artifact(kind: str, tree: Any) -> bool:
    data = seeds.packed(tree)
    try:
        if kind == "window":
            from_window(window.unpack(data))
        elif kind == "profile":
            profile.unpack(data)
        else:
            oom_record.unpack(data)
    except ValueError:
        return False
    return True


class HostileRun:
    """A run all of whose free texts have markup."""

    def __init__(self, url: str) -> None:
        self.agent = Agent(tags=["a tag"], config={"optimizer": "adam"}, command=["train.py"], git_commit="abc")
        self.http = httpx.Client(base_url=f"{url}/api/v1", trust_env=False, timeout=60)
        self.places: list[str] = []
        *others, last = seeds.batches(self.agent)
        for tree in others:
            self._send(tree)
        self.artifacts = {kind: self._artifact(kind, trees[0]) for kind, trees in seeds.artifacts().items()}
        last["sequence"] = self.agent.sequence + 1
        self._send(last)

    def _send(self, tree: Any) -> None:
        changed, places = with_markup(tree, is_batch)
        self.places += [str(path[-1]) for path in places]
        headers = {"Content-Type": messages.CONTENT_TYPE}
        answer = self.http.post("/batches", content=msgspec.msgpack.encode(changed), headers=headers)
        assert answer.status_code == 200, answer.text

    def _artifact(self, kind: str, tree: Any) -> str:
        changed, places = with_markup(tree, lambda tried: is_artifact(kind, tried))
        self.places += [str(path[-1]) for path in places]
        ident = new_id("hostile")
        if kind == "oom":
            changed["record"] = ident
        about: dict[str, Any] = {
            "device": 0,
            "first_step": 1,
            "last_step": 2,
            "reason": MARKUP,
            "time_ns": self.agent.start_ns,
        }
        if kind == "oom":
            about |= {"step": 900, "asked_bytes": 1 << 30, "seen_by": "observer"}
            event = messages.Event(time_ns=self.agent.start_ns, kind="out_of_memory", step=900, data={"record": ident})
            self._post(event)
        data = zlib.compress(msgspec.msgpack.encode(changed), 1)
        self._post(messages.Piece(artifact=ident, kind=kind, number=0, pieces=1, about=about, data=data))
        return ident

    def _post(self, *items: messages.BatchItem) -> None:
        headers = {"Content-Type": messages.CONTENT_TYPE}
        answer = self.http.post("/batches", content=self.agent.body(*items), headers=headers)
        assert answer.status_code == 200, answer.text

    def snapshot(self) -> str:
        """A snapshot file with markup in its frames and in its name."""
        tree = seeds.snapshots()[0]
        for event in range(len(tree["device_traces"][0])):
            for field in ("name", "filename"):
                tree = with_text(tree, ("device_traces", 0, event, "frames", 0, field), MARKUP)
        answer = self.http.post("/snapshots", content=pickle.dumps(tree), params={"name": MARKUP}).json()
        ident = str(answer["snapshot"])
        eventually(
            lambda: self.http.get(f"/snapshots/{ident}").json()["state"] in ("ready", "failed"), COMPILED_MS / 1000
        )
        return ident


@pytest.fixture
def hostile(own_server: Any) -> HostileRun:
    return HostileRun(own_server().url)


def test_markup_reaches_the_fields_that_people_name(hostile: HostileRun) -> None:
    """So that the next test looks at something."""
    expected = {
        "name", "project", "host", "error_line", "error_type", "holder", "advice", "file", "function", "chip", "observed", "text",
        "module", "error_text", "device_name",
    }  # fmt: skip
    assert expected <= set(hostile.places)
    run = hostile.http.get(f"/runs/{hostile.agent.run}").json()
    assert SHOWN_AS in run["name"] and SHOWN_AS in run["project"] and SHOWN_AS in run["tags"][0]


def test_no_page_runs_a_script_of_a_name(page: Any, hostile: HostileRun) -> None:
    """Violations of the content-security policy and console errors fail this test, too (conftest.py)."""
    url = str(hostile.http.base_url).partition("/api/")[0]
    run, snapshot = hostile.agent.run, hostile.snapshot()
    hostile.http.post("/tokens", json={"name": MARKUP, "role": "read"}).raise_for_status()
    other = HostileRun(url)
    pages = (
        "/runs", f"/runs/{run}", f"/runs/{run}/leaks", f"/runs/{run}/operations", f"/runs/{run}/anatomy",
        f"/runs/{run}/fragmentation", f"/runs/{run}/oom", f"/compare?runs={run},{other.agent.run}", "/snapshots",
        f"/snapshots/{snapshot}", "/settings",
    )  # fmt: skip
    for path in pages:
        page.goto(url + path)
        eventually(lambda: SHOWN_AS in page.locator("body").inner_text(), what=f"a name on {path}")
        eventually(lambda: page.evaluate(SETTLED), COMPILED_MS / 1000, path)
        page.mouse.move(700, 400)  # what is under the pointer is described
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("img[src=x], main script").count() == 0, path


def test_no_exported_page_runs_a_script_of_a_name(context: Any, hostile: HostileRun, tmp_path: Path) -> None:
    context.watcher.expected.append("request to elsewhere: file:///")
    paths = {
        "recording": f"/recordings/{hostile.artifacts['window']}/export?format=html",
        "error": f"/oom/{hostile.artifacts['oom']}/export",
    }
    for name, path in paths.items():
        answer = hostile.http.get(path)
        assert answer.status_code == 200, answer.text
        file = tmp_path / f"{name}.html"
        file.write_bytes(answer.content)
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_timeout(500)
        assert page.evaluate("window.pwned") is None
        assert page.locator("img[src=x]").count() == 0

"""The pages' files: found by hashed URLs, kept for ever, startable under the strict policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import re
import time
from pathlib import Path

import pytest
from running import RunningServer

from vramscope_server.page_modules import imports_of, page_module
from vramscope_server.pages import Pages, parsed_once

FRONTEND = Path(__file__).parents[2] / "frontend"


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/runs/abc", "/runs/abc/leaks", "/compare?runs=a,b", "/settings", "/no/such/page"]
)
def test_every_page_of_the_application_is_the_same_index(server: RunningServer, path: str) -> None:
    answer = server.http.get(f"{server.url}{path}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert "<vs-app>" in answer.text


def test_the_import_map_is_allowed_by_its_hash_and_names_every_module(server: RunningServer) -> None:
    answer = server.http.get(f"{server.url}/")
    importmap = re.search(r'<script type="importmap">(.*?)</script>', answer.text, re.S)
    assert importmap is not None
    digest = base64.b64encode(hashlib.sha256(importmap.group(1).encode()).digest()).decode()
    assert f"'sha256-{digest}'" in answer.headers["content-security-policy"]
    modules = json.loads(importmap.group(1))["imports"]
    assert modules.keys() == {f"vramscope/{path.relative_to(FRONTEND).as_posix()}" for path in FRONTEND.rglob("*.js")}
    for name, url in modules.items():
        asset = server.http.get(f"{server.url}{url}")
        assert asset.status_code == 200, name
        assert asset.headers["content-type"].startswith("text/javascript")
        assert "immutable" in asset.headers["cache-control"]
        assert asset.content == (FRONTEND / name.removeprefix("vramscope/")).read_bytes()
    assert not re.search(r"<script(?![^>]*(importmap|src=))", answer.text), "no other inline script"


def test_styles_and_plotly_are_where_the_index_says(server: RunningServer) -> None:
    page = server.http.get(f"{server.url}/").text
    [styles] = re.findall(r'<link rel="stylesheet" href="([^"]+)">', page)
    sheet = server.http.get(f"{server.url}{styles}")
    assert sheet.headers["content-type"].startswith("text/css")
    assert "immutable" in sheet.headers["cache-control"]
    for file in FRONTEND.rglob("*.css"):
        assert file.read_text() in sheet.text, file.name
    assert sheet.text.startswith((FRONTEND / "styles" / "tokens.css").read_text())
    plotly = re.search(r'<meta name="plotly-src" content="([^"]+)">', page)
    assert plotly is not None
    assert plotly.group(1) == f"/assets/plotly-{server.get('/server')['plotly_js']}.min.js"
    deadline = time.monotonic() + 30
    while True:
        asset = server.http.get(f"{server.url}{plotly.group(1)}")
        if "content-encoding" in asset.headers or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert asset.headers["content-encoding"] == "gzip"
    assert b"plotly.js v" in asset.content[:300]
    assert "immutable" in asset.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["../pyproject.toml", "..%2f..%2fpyproject.toml", "nonsense.js", "index.html", "/etc/passwd", "%00"]
)
def test_nothing_but_the_pages_files_is_served(server: RunningServer, path: str) -> None:
    answer = server.http.get(f"{server.url}/assets/{path}")
    assert answer.status_code == 404 or "<vs-app>" in answer.text
    assert "root:" not in answer.text and "hatchling" not in answer.text


def test_an_edit_shows_at_the_next_reload(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!-- importmap --><!-- styles -->")
    (tmp_path / "app.js").write_text("one")
    pages = Pages(tmp_path)
    before = bytes(pages.index().body)
    (tmp_path / "app.js").write_text("two, longer")
    (tmp_path / "new.css").write_text("body{}")
    after = bytes(pages.index().body)
    assert before != after
    assert b"/assets/styles-" in after
    (tmp_path / "new.css").unlink()
    assert b"/assets/styles-" not in bytes(pages.index().body)


@pytest.mark.parametrize(
    ("path", "own", "of_others"),
    [
        ("/", "pages/runs.js", "pages/run.js"),
        ("/runs/abc", "pages/run.js", "pages/leaks.js"),
        ("/runs/abc/memory/", "pages/run.js", "pages/runs.js"),
        ("/runs/abc/leaks", "pages/leaks.js", "pages/run.js"),
        ("/snapshots/abc", "pages/snapshot.js", "pages/run.js"),
        ("/runs/abc/no-such-tab", "pages/unknown.js", "chart.js"),
        ("/no/such/page", "pages/unknown.js", "chart.js"),
    ],
)
def test_a_page_preloads_its_own_modules_alone(server: RunningServer, path: str, own: str, of_others: str) -> None:
    preloaded = re.findall(
        r'<link rel="modulepreload" href="/assets/([^"]+)-\w{10}\.js">', server.http.get(f"{server.url}{path}").text
    )
    assert {"frame", own.removesuffix(".js")} <= set(preloaded)
    assert of_others.removesuffix(".js") not in preloaded


def test_plotly_is_preloaded_where_a_chart_waits_for_it(server: RunningServer) -> None:
    for path, draws in {"/runs/abc": True, "/compare": True, "/runs": False, "/settings": False}.items():
        assert ('<link rel="preload" as="script"' in server.http.get(f"{server.url}{path}").text) == draws, path


def test_imports_are_read_from_statements_only() -> None:
    source = """import { a } from "vramscope/a.js";
import {
  b,
} from "vramscope/b.js";
export { c } from "vramscope/c.js";
import "vramscope/d.js";
const later = () => import("vramscope/later.js");
// see "vramscope/words.js"
"""
    assert imports_of(source) == ["a.js", "b.js", "c.js", "d.js"]


def test_small_files_are_compressed_for_those_who_ask(server: RunningServer) -> None:
    url = re.search(r'"vramscope/app.js": "([^"]+)"', server.http.get(f"{server.url}/").text)
    assert url is not None
    plain = server.http.get(f"{server.url}{url.group(1)}", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = server.http.get(f"{server.url}{url.group(1)}")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert gzip.compress(plain.content)
    again = server.http.get(f"{server.url}{url.group(1)}", headers={"If-None-Match": plain.headers["etag"]})
    assert again.status_code == 304


def test_plotly_is_served_in_the_form_that_browsers_parse_once() -> None:
    """The wheel's file is the one that this was made for; a file of another form goes out as it is."""
    wheel = importlib.util.find_spec("plotly")
    assert wheel is not None and wheel.origin is not None
    came = (Path(wheel.origin).parent / "package_data" / "plotly.min.js").read_bytes()
    assert len(parsed_once(came)) == len(came) + 2
    assert parsed_once(b"/* another form */") == b"/* another form */"


@pytest.mark.parametrize(
    ("path", "module"), [("/sign-in", "pages/sign_in.js"), ("/runs/ab/oom", "pages/oom.js"), ("/", "pages/runs.js")]
)
def test_each_page_preloads_its_own_module(path: str, module: str) -> None:
    assert page_module(path) == module

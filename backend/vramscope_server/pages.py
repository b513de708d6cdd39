"""Serves the pages: plain files, each under a URL with a hash of its content, so that browsers may cache it for ever.

``index.html`` has two placeholders: ``<!-- importmap -->`` (each ``frontend/**/*.js`` becomes importable as
``vramscope/<path>``, app.js is started, and the modules of the page are preloaded) and ``<!-- styles -->`` (all styles,
joined). Plotly.js comes from the installed plotly wheel: Python and page always draw with the same version.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import importlib.util
import json
import logging
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response

from vramscope_server.api.problems import NotFound
from vramscope_server.page_modules import imports_of, modules_of
from vramscope_server.request_checks import CSP

log = logging.getLogger("vramscope_server.pages")

FOREVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
_PRELOADS: Final = "<!-- preloads -->"
_CHART: Final = "chart.js"
"""Module of a chart. A page that imports it needs Plotly.js."""
_COMPRESSED: Final = (".js", ".css", ".svg", ".json", ".txt")
_NOTHING_THERE: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>vramscope</title><h1>vramscope</h1>"
    "<p>The server runs, but its pages are not installed. The API is described at <a href='/api/v1/docs'>/api/v1/docs</a>.</p>"
)


@dataclass
class _Asset:
    path: Path
    mtime_ns: int
    body: bytes
    type: str
    url: str
    compressed: bytes | None = field(default=None)


class Pages:
    """Files of ``folder`` (``frontend/``); in a checkout, edits show at the next reload."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or _find_folder()
        self._by_url: dict[str, _Asset] = {}
        self._by_name: dict[str, _Asset] = {}
        self._lock = threading.Lock()
        self._index: tuple[str, str] | None = None
        self._imports: dict[str, list[str]] = {}
        self._plotly = _plotly_file()
        self.plotly_js_version = _plotly_js_version(self._plotly)
        if self._plotly is not None:
            url = f"/assets/plotly-{self.plotly_js_version}.min.js"
            self._add("plotly.min.js", self._plotly, url)
            plotly = self._by_name["plotly.min.js"]
            plotly.body = parsed_once(plotly.body)
        self.refresh()
        threading.Thread(target=self._compress_all, name="vramscope-pages", daemon=True).start()

    def refresh(self) -> None:
        """Read the files that changed."""
        with self._lock:
            present = {"plotly.min.js"}
            changed = self._index is None
            for path in sorted(self._folder.rglob("*")) if self._folder else []:
                if path.suffix not in _TYPES and path.name != "index.html":
                    continue
                name = path.relative_to(self._folder).as_posix() if self._folder else path.name
                present.add(name)
                known = self._by_name.get(name)
                if known is None or known.mtime_ns != path.stat().st_mtime_ns:
                    self._add(name, path)
                    changed = True
            for name in [name for name in self._by_name if name not in present]:
                del self._by_name[name]
                changed = True
            if changed:
                self._index = self._build_index()

    def _add(self, name: str, path: Path, url: str | None = None) -> None:
        body = path.read_bytes()
        if url is None:
            stem, dot, suffix = name.rpartition(".")
            url = f"/assets/{stem}-{hashlib.sha256(body).hexdigest()[:10]}{dot}{suffix}"
        kind = _TYPES.get(path.suffix, "text/html; charset=utf-8")
        asset = _Asset(path, path.stat().st_mtime_ns, body, kind, url)
        self._by_name[name] = self._by_url[url] = asset

    def _build_index(self) -> tuple[str, str]:
        index = self._by_name.get("index.html")
        if index is None:
            return _NOTHING_THERE, CSP.format(scripts="")
        modules = {
            f"vramscope/{name}": asset.url
            for name, asset in self._by_name.items()
            if name.endswith(".js") and name != "plotly.min.js"
        }
        self._imports = {
            name: imports_of(self._by_name[name].body.decode())
            for name in (module.removeprefix("vramscope/") for module in modules)
        }
        importmap = json.dumps({"imports": modules}, indent=0)
        digest = base64.b64encode(hashlib.sha256(importmap.encode()).digest()).decode()
        head = [f'<script type="importmap">{importmap}</script>', _PRELOADS]  # a map behind a preload would not count
        if "plotly.min.js" in self._by_name:
            head.append(f'<meta name="plotly-src" content="{html.escape(self._by_name["plotly.min.js"].url)}">')
        if "app.js" in self._by_name:
            head.append(f'<script type="module" src="{html.escape(self._by_name["app.js"].url)}"></script>')
        page = (
            index.body.decode()
            .replace("<!-- importmap -->", "\n".join(head))
            .replace("<!-- styles -->", self._joined_styles())
        )
        return page, CSP.format(scripts=f" 'sha256-{digest}'")

    def _joined_styles(self) -> str:
        """The link of one file with all styles."""
        sheets = [asset for name, asset in _in_order(self._by_name) if name.endswith(".css")]
        if not sheets:
            return ""
        body = b"\n".join(asset.body for asset in sheets)
        url = f"/assets/styles-{hashlib.sha256(body).hexdigest()[:10]}.css"
        newest = max(sheets, key=lambda asset: asset.mtime_ns)
        self._by_url[url] = _Asset(newest.path, newest.mtime_ns, body, _TYPES[".css"], url)
        return f'<link rel="stylesheet" href="{html.escape(url)}">'

    def _preloads(self, path: str) -> str:
        """Links of the files that the page at a path needs."""
        names = modules_of(path, self._imports)
        links = [f'<link rel="modulepreload" href="{html.escape(self._by_name[name].url)}">' for name in names]
        if _CHART in names and (plotly := self._by_name.get("plotly.min.js")):
            links.append(f'<link rel="preload" as="script" href="{html.escape(plotly.url)}">')
        return "\n".join(links)

    def _compress_all(self) -> None:
        for asset in list(self._by_name.values()):
            _compress(asset)

    def index(self, path: str = "") -> Response:
        """The one page of all routes, with the preloads of one. It is revalidated; its parts are not."""
        self.refresh()
        assert self._index is not None
        page, csp = self._index
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": csp}
        return Response(
            page.replace(_PRELOADS, self._preloads(path)), headers=headers, media_type="text/html; charset=utf-8"
        )

    def asset(self, request: Request, path: str) -> Response:
        """A file, by its hashed URL (cached for ever) or by its plain name (revalidated). Raises NotFound."""
        found = self._by_url.get(f"/assets/{path}")
        cache = FOREVER
        if found is None:
            found, cache = self._by_name.get(path), "no-cache"
        if found is None or path == "index.html":
            raise NotFound(f"There is no file {path[:200]!r}.", seen=path[:200], suggestions=["/"])
        return _answered(request, found, cache)


def parsed_once(plotly_js: bytes) -> bytes:
    """Plotly.js with its one function of 4.8 MB in parentheses, which makes a browser compile it at once.

    Otherwise the browser only preparses that function while it loads, and then parses it again on the main thread: 190 ms
    of 410 until it has run, measured in Chromium 156. A file of another form is not changed.
    """
    opening, end = b": this, () => {\n", b"}));"
    if plotly_js.count(opening) != 1 or not plotly_js.endswith(end):
        return plotly_js
    return plotly_js.replace(opening, b": this, (() => {\n").removesuffix(end) + b"})));"


def _answered(request: Request, asset: _Asset, cache: str) -> Response:
    tag = f'"{hashlib.sha256(asset.body).hexdigest()[:20]}"' if cache == "no-cache" else f'"{asset.url[-24:]}"'
    headers = {"Cache-Control": cache, "ETag": tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    body = asset.body
    if asset.path.suffix in _COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
        # Plotly.js takes a quarter of a second: done once, in the background; until then it is served unchanged.
        if asset.compressed is None and len(body) < 200_000:
            _compress(asset)
        if asset.compressed is not None:
            body = asset.compressed
            headers["Content-Encoding"] = "gzip"
    return Response(body, headers=headers, media_type=asset.type)


def _compress(asset: _Asset) -> None:
    if asset.path.suffix in _COMPRESSED:
        asset.compressed = gzip.compress(asset.body, 6, mtime=0)


def _in_order(assets: dict[str, _Asset]) -> list[tuple[str, _Asset]]:
    """Styles in the order of their dependencies: tokens, base, then the rest by name."""
    first = {"styles/tokens.css": 0, "styles/base.css": 1, "styles/parts.css": 2}
    return sorted(assets.items(), key=lambda item: (first.get(item[0], 9), item[0]))


def _find_folder() -> Path | None:
    here = Path(__file__).resolve().parent
    for folder in (here / "frontend", here.parent.parent / "frontend"):
        if (folder / "index.html").is_file():
            return folder
    log.warning("the pages are not installed: no frontend/ beside %s", here)
    return None


def _plotly_file() -> Path | None:
    # Found without importing plotly, which is loaded elsewhere.
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def _plotly_js_version(path: Path | None) -> str | None:
    if path is None:
        return None
    with path.open("rb") as file:
        found = re.search(rb"plotly\.js v(\d+\.\d+\.\d+[\w.-]*)", file.read(400))
    return found.group(1).decode() if found else "unknown"


def install(app: FastAPI, pages: Pages) -> None:
    """Routes of assets, and index.html for every page of the application."""

    @app.get("/assets/{path:path}", include_in_schema=False)
    def asset(request: Request, path: str) -> Response:
        return pages.asset(request, path)

    @app.get("/favicon.ico", include_in_schema=False)
    @app.get("/favicon.svg", include_in_schema=False)
    def favicon(request: Request) -> Response:
        return pages.asset(request, "favicon.svg")

    @app.get("/{path:path}", include_in_schema=False)
    def page(path: str) -> Response:
        # The pages explain an unknown page themselves, with links. An unknown call is a problem.
        if path.startswith(("api/", "assets/")):
            raise NotFound(
                f"There is no call /{path[:200]}; /api/v1/docs lists them.", seen=f"/{path[:200]}", suggestions=[]
            )
        return pages.index(path)

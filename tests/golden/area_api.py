"""Answers of every GET route for a set of stored runs, the routes themselves, and the command line for the same runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from files import Result, masked, split
from running import RunningServer
from stored_runs import DEAD, LATER_RECORD, LEAN, PLAIN, PROFILE, RANKS, RECORD, WINDOWS, started

from vramscope_server.__main__ import main

AREA, ROUTES, DRAWN, COMMANDS = "api", "api_routes", "api_figures", "cli"
MOST_ITEMS = 12
"""A longer list of numbers or of texts is stored as its length and a digest."""
MOST_TEXT = 2000
WORDS = [
    "title",
    "sentence",
    "detail",
    "advice",
    "text",
    "words",
    "problem",
    "notes",
    "warnings",
    "time",
    "memory",
    "moment",
    "cost",
    "what",
    "first_aid",
    "reason",
    "need_words",
    "source_words",
    "kind_words",
    "by_site_words",
    "wording",
]
"""Keys whose texts are sentences, also those of one word."""
META = ("role", "kind", "unit", "run", "stream", "field")
"""Of a trace: what it draws, and which live rows feed it."""
VARIES = [
    "version",
    "plotly_py",
    "plotly_js",
    "received_seconds",
    "last_seen_seconds",
    "stored_bytes",
    "compiling",
    "host_name",
]
"""Versions, and times and sizes of this run of the server."""
PAIR = {"runs": f"{PLAIN},{LEAN},{DEAD}", "base": PLAIN}
NAMES_OF_SERIES = "allocated_bytes,reserved_bytes"
FIGURES = ("stack", "fragmentation", "phases", "utilization", "host", "floor", "loss", "metrics")
COMPARED_FIGURES = ("peaks_over_steps", "peaks_side_by_side", "memory_against_time", "loss_over_steps")
CLI = (
    "ls",
    "ls lean",
    "ls --state failed",
    "show plain",
    "show dead",
    "show nobody",
    "steps plain",
    "steps two-ranks --rank 1",
    "compare plain lean dead",
    "check plain",
    "check lean --peak-allocated 20GiB --skip oom",
    "check dead --baseline plain",
    "diff plain lean",
    "diff plain two-ranks",
    "leaks plain",
    "leaks lean",
    "leaks two-ranks",
    "oom dead",
    "oom plain",
    "whatif dead --conf expandable_segments:True",
    "whatif two-ranks",
    "predict plain",
    "predict lean",
    "predict plain --technique gradient_accumulation:4",
)
NOT_ASKED = {
    "/recordings/{recording}/whatif/{job}": "asked in the same call as the POST",
    "/tables": "the fields of the answers once more: tests/backend/test_tables.py",
}
NOT_READ = ("text/html", "application/vnd.apache.parquet", "application/gzip", "application/octet-stream")
"""Content types whose bytes hold a library, or depend on the version of one."""


def questions(leaks: list[str], snapshot: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(route, path, parameters) of each call."""

    def of_run(route: str, **more: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for run in (PLAIN, LEAN, RANKS, DEAD):
            yield route, route.replace("{run}", run), more

    yield "/runs", "/runs", {}
    yield "/runs", "/runs", {"project": "gpt2", "limit": 2}
    yield "/runs", "/runs", {"query": "lea"}
    yield "/runs", "/runs", {"state": "failed"}
    yield "/runs", "/runs", {"tag": "first"}
    yield "/runs", "/runs", {"job": "4242"}
    for route in (
        "/runs/{run}",
        "/runs/{run}/leaks",
        "/runs/{run}/next-change",
        "/runs/{run}/peak",
        "/runs/{run}/oom",
        "/runs/{run}/recordings",
        "/runs/{run}/profiles",
    ):
        yield from of_run(route)
    yield "/runs/{run}", "/runs/nobody", {}
    yield "/runs/{run}", "/runs/plain", {}
    yield from of_run("/runs/{run}/steps", limit=3)
    yield from of_run("/runs/{run}/series", names=NAMES_OF_SERIES)
    yield "/runs/{run}/series", f"/runs/{PLAIN}/series", {"stream": "scalars", "names": "loss", "points": 10}
    yield "/runs/{run}/series", f"/runs/{PLAIN}/series", {"names": NAMES_OF_SERIES, "x": "step", "points": 10}
    yield "/runs/{run}/series", f"/runs/{RANKS}/series", {"names": "allocated_bytes", "rank": 1, "device": 1}
    yield "/runs/{run}/series", f"/runs/{PLAIN}/series", {"names": "no_such_column"}
    yield "/runs/{run}/leaks", f"/runs/{RANKS}/leaks", {"rank": 1, "device": 0}
    for leak in leaks:
        route = "/runs/{run}/leaks/{leak}/replay"
        yield route, route.replace("{run}", PLAIN).replace("{leak}", leak), {}
    for name in FIGURES:
        for run in (PLAIN, RANKS):
            yield "/runs/{run}/figures/{name}", f"/runs/{run}/figures/{name}", {}
    yield "/runs/{run}/figures/{name}", f"/runs/{PLAIN}/figures/stack", {"x": "step", "from": 5, "to": 20}
    yield "/runs/{run}/figures/{name}", f"/runs/{PLAIN}/figures/nothing", {}
    for record in (RECORD, LATER_RECORD):
        yield "/oom/{record}", f"/oom/{record}", {"wait_seconds": 20}
        for part in ("/figure", "/loss", "/map", "/export"):
            yield f"/oom/{{record}}{part}", f"/oom/{record}{part}", {}
        yield "/oom/{record}/block", f"/oom/{record}/block", {"offset": 1 << 20}
    yield "/oom/{record}", "/oom/nothing00000", {}
    fully = ("windowplain1", f"{snapshot}-0")
    for recording in (*(ident for idents in WINDOWS.values() for ident in idents), f"{snapshot}-0", f"{snapshot}-1"):
        yield from _of_recording(recording, fully=recording in fully)
    yield "/recordings/{recording}", "/recordings/nothing00000", {}
    for part in ("", "/trace"):
        yield f"/profiles/{{profile}}{part}", f"/profiles/{PROFILE}{part}", {}
    for table in ("operations", "modules", "lines"):
        route = "/profiles/{profile}/tables/{table}"
        yield route, f"/profiles/{PROFILE}/tables/{table}", {}
        yield route, f"/profiles/{PROFILE}/tables/{table}", {"sort": "name", "order": "rising", "limit": 2}
    for name in ("operations", "modules", "memory"):
        yield "/profiles/{profile}/figures/{name}", f"/profiles/{PROFILE}/figures/{name}", {}
    yield "/snapshots", "/snapshots", {}
    yield "/notifications", "/notifications", {}
    yield "/snapshots/uploads/{upload}", f"/snapshots/uploads/{'0' * 32}", {}
    yield "/snapshots/{snapshot}", f"/snapshots/{snapshot}", {}
    for part in ("", "/predictions", "/techniques"):
        yield f"/compare{part}", f"/compare{part}", PAIR
    for form in ("markdown", "csv", "latex"):
        yield "/compare/table", "/compare/table", {**PAIR, "format": form}
    yield "/compare/report", "/compare/report", PAIR
    for table, more in (
        ("leaks", {"run": PLAIN, "format": "json"}),
        ("pitfalls", {"run": PLAIN}),
        ("settings", {"runs": f"{PLAIN},{LEAN}", "format": "json"}),
        ("steps", {"run": PLAIN, "from": 39, "format": "json"}),
        ("operations", {"run": PLAIN, "format": "parquet"}),
        ("no_such_table", {}),
    ):
        yield "/tables/{name}", f"/tables/{table}", more
    yield "/runs/{run}/report", f"/runs/{PLAIN}/report", {}
    for part in ("sites", "timelines"):
        yield f"/compare/{part}", f"/compare/{part}", {"a": PLAIN, "b": LEAN}
    for name in COMPARED_FIGURES:
        yield "/compare/figures/{name}", f"/compare/figures/{name}", PAIR
    yield "/live/delta", "/live/delta", {"after": 0}
    for route in (
        "/tokens",
        "/alerts",
        "/audit",
        "/session",
        "/session/oidc",
        "/session/oidc/callback",
        "/server",
        "/demo",
        "/health",
    ):
        yield route, route, {}


def _of_recording(recording: str, *, fully: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    def ask(part: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
        return f"/recordings/{{recording}}{part}", f"/recordings/{recording}{part}", more

    for part in (
        "",
        "/data",
        "/moments",
        "/strip",
        "/map",
        "/sizes",
        "/timeline",
        "/allocations",
        "/flame",
        "/anatomy",
        "/prediction",
    ):
        yield ask(part)
    yield ask("/block", offset=1 << 20)
    yield ask("/life", allocation=5)
    yield ask("/between", a=0, b=20)
    yield ask("/at", event=20, bytes=1 << 20)
    yield ask("/events", limit=3)
    yield ask("/export", format="csv")
    if not fully:
        return
    yield ask("/map", event=10, lines=8, columns=16)
    yield ask("/strip", points=20, **{"from": 5, "to": 60})
    yield ask("/block", offset=1 << 50)
    for by in ("site", "module", "phase"):
        yield ask("/timeline", by=by, points=50)
    yield ask("/allocations", by="phase")
    for number in (0, 20):
        yield ask("/life", allocation=number)
    yield ask("/flame", event=20, by="module")
    yield ask("/events", text="forward", limit=2)
    yield ask("/anatomy", event=10)
    yield ask("/anatomy", event=10**9)
    yield ask("/prediction", techniques="gradient_accumulation:4,gradient_checkpointing+optimizer_8bit")
    yield ask("/prediction", techniques="no_such_technique")
    for form in ("parquet", "perfetto", "html"):
        yield ask("/export", format=form)


Answers = list[tuple[str, str, Any]]
"""(route, method, answer) of each call."""


def compute(seen: Answers | None = None) -> dict[str, Result]:
    """Twenty seconds. Each answer is added to ``seen``."""
    with tempfile.TemporaryDirectory(prefix="stored-") as folder:
        server, snapshot = started(Path(folder))
        try:
            return of_server(server, snapshot, [] if seen is None else seen)
        finally:
            server.stop()


def of_server(server: RunningServer, snapshot: str, seen: Answers) -> dict[str, Result]:
    leaks = [one["id"] for one in server.get(f"/runs/{PLAIN}/leaks")["leaks"]]
    names = {snapshot: "SNAPSHOT", str(server.port): "PORT", **{leak: f"LEAK{at}" for at, leak in enumerate(leaks)}}
    whole, drawn, asked = Result(), Result(), set()
    for route, path, parameters in questions(leaks, snapshot):
        answer = server.http.get(path, params=parameters)
        asked.add(route)
        seen.append((route, "get", answer))
        _add(whole, drawn, _named(_call("GET", path, parameters), names), answer, names)
    for run, conf in ((PLAIN, []), (DEAD, ["expandable_segments:True", "max_split_size_mb:64"])):
        recording = next(iter(WINDOWS[run]))
        path = f"/recordings/{recording}/whatif"
        result = server.http.post(path, json={"confs": conf} if conf else {})
        seen.append(("/recordings/{recording}/whatif", "post", result))
        job = result.json()
        while job["state"] in ("waiting", "running"):
            job = server.get(f"{path}/{job['job']}")
        answer = server.http.get(f"{path}/{job['job']}")
        seen.append(("/recordings/{recording}/whatif/{job}", "get", answer))
        _add(whole, drawn, f"GET {path}/JOB {' '.join(conf)}".strip(), answer, {**names, job["job"]: "JOB"})
    described = server.get("/openapi.json")["paths"]
    routes = {path.removeprefix("/api/v1"): methods for path, methods in described.items()}
    left_out = sorted({path for path, methods in routes.items() if "get" in methods} - asked - {*NOT_ASKED})
    assert not left_out, f"GET routes that area_api.py does not ask: {', '.join(left_out)}"
    return {AREA: whole, DRAWN: drawn, ROUTES: Result(_of_routes(routes)), COMMANDS: _of_commands(server, names)}


def _of_commands(server: RunningServer, names: dict[str, str]) -> Result:
    """Exit code and JSON of each command of the command line; what people read is among the sentences."""
    whole = Result()
    for words in CLI:
        for form in ("", "--json"):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main([*words.split(), *form.split(), "--server", server.url])
            reported, problem = (
                re.sub(r"\d+ d ago", "N d ago", _named(text.getvalue(), names)).rstrip() for text in (out, err)
            )
            call = f"{words} {form}".strip()
            facts, sentences = None, {"out": reported.splitlines()} if reported else {}
            if form and reported:
                facts, sentences = split(
                    _shortened(masked(json.loads(reported), VARIES)), words=WORDS, names=("file", "shapes")
                )
            if problem:
                sentences["problem"] = problem
            whole.facts[call] = {"code": code, "json": facts}
            if sentences:
                whole.sentences[call] = sentences
    return whole


def _of_routes(routes: dict[str, Any]) -> dict[str, Any]:
    """Every method of every route with its parameters; ``!`` behind those that must be given."""
    return {
        path: {
            method.upper(): sorted(
                f"{one['name']}{'!' * bool(one.get('required'))}" for one in each.get("parameters", [])
            )
            for method, each in methods.items()
        }
        for path, methods in routes.items()
    }


def _call(method: str, path: str, parameters: dict[str, Any]) -> str:
    words = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{method} {path}{'?' if words else ''}{words}"


def _named(text: str, names: dict[str, str]) -> str:
    for ident, name in names.items():
        text = re.sub(rf"(?<![0-9a-zA-Z]){re.escape(ident)}(?![0-9a-zA-Z])", name, text)
    return text


def _add(whole: Result, drawn: Result, call: str, answer: Any, names: dict[str, str]) -> None:
    """What a call gave: its status, and its JSON in facts and sentences; a figure goes to ``drawn``."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    facts: Any = None
    sentences: dict[str, str] = {}
    if kind.endswith("json") and "export" not in call:
        response = json.loads(_named(answer.text, names))
        if isinstance(response, dict) and isinstance(response.get("figure"), dict):
            drawn.facts[call], sentences = split(_drawn(response.pop("figure")), words=("name",))
            if sentences:
                drawn.sentences[call] = sentences
            response["figure"] = "drawn"
        facts, sentences = split(_shortened(masked(response, VARIES)), words=WORDS, names=("file", "shapes"))
    elif kind not in NOT_READ and (kind.startswith("text/") or kind == "application/x-latex"):
        sentences = {"": _named(answer.text, names)[:MOST_TEXT]}
        facts = {"lines": answer.text.count("\n")}
    elif kind not in NOT_READ:
        facts = _digest(_named(answer.text, names))
    whole.facts[call] = {"status": answer.status_code, "type": kind, "answer": facts}
    if sentences:
        whole.sentences[call] = sentences


def _drawn(figure: dict[str, Any]) -> list[Any]:
    """What each trace draws, without how it looks: its type, its role and digests of its data; then the layout's ``meta``."""
    traces = [
        {
            "type": trace.get("type"),
            "name": trace.get("name"),
            **{key: one for key, one in (trace.get("meta") or {}).items() if key in META},
            **{key: _shortened(one) for key, one in trace.items() if _is_data(one)},
        }
        for trace in figure["data"]
    ]
    return [*traces, _shortened(figure["layout"].get("meta"))]


def _is_data(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and "bdata" in value)


def _shortened(value: Any) -> Any:
    """With digests in place of long lists, and of arrays as Plotly packs them."""
    if isinstance(value, dict):
        if "bdata" in value:
            shape = str(value.get("shape", "")).replace(" ", "")
            return f"{value['dtype']}:{shape}:{_digest(value['bdata'])}"
        return {key: _shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        if len(value) > MOST_ITEMS and not any(isinstance(one, (dict, list)) for one in value):
            # (with spaces it is a sentence: the text of a hover box)
            between = " " if any(isinstance(one, str) and " " in one for one in value) else ":"
            return between.join([str(len(value)), "values", _digest(json.dumps(value))])
        return [_shortened(one) for one in value]
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]

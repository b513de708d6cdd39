"""Writes docs/http.md from the server's openapi.json and docs/http.template.md.

python docs/generate_http.py           # writes the page
python docs/generate_http.py --check   # exit code 1 if the page is stale
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vramscope_server.app import create_app
from vramscope_server.settings import Settings

PAGE: Final = Path(__file__).parent / "http.md"
TEMPLATE: Final = Path(__file__).parent / "http.template.md"
PREFIX: Final = "/api/v1"
SECTIONS: Final = {
    "ingest": "Ingest",
    "runs": "Runs",
    "leaks": "Leaks",
    "out of memory": "Out-of-memory errors",
    "recordings": "Recordings",
    "profiles": "Profiles",
    "snapshots": "Snapshot files",
    "figures": "Figures",
    "compare": "Comparisons",
    "tables": "Tables",
    "live": "Live events",
    "tokens": "Tokens",
    "session": "Sign-in",
    "server": "Server",
}
"""Headings of the tags, in the order of the page."""


def main() -> int:
    """Write or check the page. Returns the exit code."""
    page = rendered(openapi(), TEMPLATE.read_text())
    if "--check" in sys.argv[1:]:
        fresh = PAGE.read_text() == page
        print(f"{PAGE.name} is {'up to date' if fresh else 'stale: run python docs/generate_http.py'}")
        return 0 if fresh else 1
    PAGE.write_text(page)
    print(f"{PAGE.name}: {page.count(chr(10))} lines")
    return 0


def openapi() -> dict[str, Any]:
    """The description of a fresh server."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder)))
        try:
            return app.openapi()
        finally:
            app.state.services.close()


def rendered(described: dict[str, Any], template: str) -> str:
    """The page: ``{{calls}}`` and ``{{types}}`` of the template filled in."""
    calls = "\n".join(_calls(described)).strip()
    types = "\n".join(_types(described)).strip()
    return template.replace("{{calls}}", calls).replace("{{types}}", types)


def _calls(described: dict[str, Any]) -> Iterator[str]:
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {tag: [] for tag in SECTIONS}
    for path, methods in described["paths"].items():
        for method, call in methods.items():
            found.setdefault(call["tags"][0], []).append((method.upper(), path.removeprefix(PREFIX), call))
    for tag, calls in found.items():
        yield f"### {SECTIONS.get(tag, tag.capitalize())}\n"
        for method, path, call in calls:
            yield from _call(method, path, call)


def _call(method: str, path: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"#### `{method} {path}`\n"
    yield f"{call['summary']}. {_plain(call.get('description', ''))}".strip() + "\n"
    parameters = [one for one in call.get("parameters", []) if one["in"] == "query"]
    if parameters:
        yield "| parameter | type | default | meaning |\n|---|---|---|---|"
        for one in parameters:
            schema = one["schema"]
            default = "required" if one.get("required") else _default(schema.get("default"))
            yield f"| `{one['name']}` | {_type(schema)} | {default} | {_cell(one.get('description', ''))} |"
        yield ""
    if body := call.get("requestBody"):
        kinds = [_type(one["schema"]) if "schema" in one else f"`{kind}`" for kind, one in body["content"].items()]
        yield f"Body: {' or '.join(kinds)}.\n"
    for status, answer in call["responses"].items():
        if status != "default":
            yield f"- {status}: {_answer(answer)}"
    yield ""


def _answer(answer: dict[str, Any]) -> str:
    parts = []
    for kind, one in answer.get("content", {}).items():
        named = "schema" in one and kind == "application/json"
        parts.append(_type(one["schema"]) if named else f"`{kind}`")
    text = answer.get("description", "").rstrip(".")
    if not parts:
        return "no content."
    return f"{' or '.join(dict.fromkeys(parts))}. {_plain(text)}.".replace(" Successful Response.", "")


def _types(described: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"### {name}\n"
        if text := _plain(schema.get("description", "")):
            yield f"{text}\n"
        required = schema.get("required", ())
        yield "| field | type | unit | meaning |\n|---|---|---|---|"
        for field, one in schema.get("properties", {}).items():
            optional = "" if field in required else " (optional)"
            yield f"| `{field}` | {_type(one)}{optional} | {one.get('x-unit', '')} | {_cell(one.get('description', ''))} |"
        yield ""


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{word}`" if word else "empty" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(_type(one) for one in schema['prefixItems'])}]"
        return f"array of {_type(schema.get('items') or {})}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(kind or "any")


def _default(value: Any) -> str:
    return (
        ""
        if value is None
        else "empty"
        if value == ""
        else f"`{value}`".replace("True", "true").replace("False", "false")
    )


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())

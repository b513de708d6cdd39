"""The OpenAPI page. FastAPI's own page loads scripts from other sites, which an air-gapped machine cannot."""

from __future__ import annotations

import html
from typing import Any

from fastapi import APIRouter, Request, Response

router = APIRouter()

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code{font-size:.95em}h2{margin-top:2rem}section{border-top:1px solid #8886;padding:.8rem 0}"
    "table{border-collapse:collapse}td{padding:.15rem 1rem .15rem 0;vertical-align:top}"
    ".m{display:inline-block;min-width:4rem;font-weight:600}"
)


@router.get("/docs", include_in_schema=False)
def get_docs(request: Request) -> Response:
    """Every call with its parameters, from ``openapi.json``."""
    schema: dict[str, Any] = request.app.openapi()
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_e(schema['info']['title'])}: HTTP API</title><style>{_STYLE}</style>"
        f"<h1>{_e(schema['info']['title'])} {_e(schema['info']['version'])}: HTTP API</h1>"
        "<p>Machines read <a href='openapi.json'><code>openapi.json</code></a>.</p>"
    ]
    for path, methods in schema["paths"].items():
        for method, call in methods.items():
            rows = "".join(
                f"<tr><td><code>{_e(p['name'])}</code><td>{_e(_type(p['schema']))}{' (needed)' if p.get('required') else ''}"
                f"<td>{_e(p.get('description', ''))}"
                for p in call.get("parameters", [])
            )
            parts.append(
                f"<section><span class=m>{_e(method.upper())}</span> <code>{_e(path)}</code> "
                f"<strong>{_e(call.get('summary', ''))}</strong>"
                f"<p>{_e(call.get('description', ''))}</p><table>{rows}</table></section>"
            )
    return Response("".join(parts), media_type="text/html; charset=utf-8", headers={"Cache-Control": "no-cache"})


def _e(text: object) -> str:
    return html.escape(str(text)).replace("``", "")


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(str(word) or '""' for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"] if part.get("type") != "null")
    return str(schema.get("type", ""))

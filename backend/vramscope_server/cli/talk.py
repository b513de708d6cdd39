"""How commands talk to the server, and say what went wrong."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import httpx

BAD_WORDS: Final = 2
NOT_FOUND: Final = 3
NO_SERVER: Final = 4


class Failure(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def ask(server: str, path: str, **parameters: Any) -> Any:
    """GET an answer of the API. Raises Failure: 3 not found, 4 no server, 2 whatever else was refused."""
    token = os.environ.get("VRAMSCOPE_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = server.rstrip("/") + "/api/v1" + path
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    try:
        with httpx.Client(timeout=30, trust_env=not _is_local(server), headers=headers) as client:
            response = client.get(url, params=given)
    except httpx.InvalidURL as error:
        raise Failure(f"{server!r} is not an address: {error}.", BAD_WORDS) from None
    except httpx.UnsupportedProtocol:
        raise Failure(f"{server!r} is not an address: it begins with http:// or https://.", BAD_WORDS) from None
    except httpx.HTTPError as error:
        raise Failure(f"no server answers at {server} ({error}). Start one with: vramscope server", NO_SERVER) from None
    if response.is_success:
        try:
            return response.json()
        except json.JSONDecodeError:
            raise Failure(f"what answers at {server} is not a vramscope server.", NO_SERVER) from None
    raise _failure(server, response)


def _failure(server: str, response: httpx.Response) -> Failure:
    try:
        problem: dict[str, Any] = response.json()
        detail = str(problem["detail"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return Failure(
            f"what answers at {server} is not a vramscope server (status {response.status_code}).", NO_SERVER
        )
    if response.status_code == 404:
        near = [str(name) for name in problem.get("suggestions", [])]
        return Failure(f"{detail} {'There is: ' + ', '.join(near) if near else ''}".strip(), NOT_FOUND)
    if response.status_code in (401, 403):
        detail += " (VRAMSCOPE_TOKEN holds the token)"
    return Failure(detail, NO_SERVER if response.status_code >= 500 else BAD_WORDS)


def quoted(run: str) -> str:
    """A run's name as part of a path."""
    import urllib.parse

    return urllib.parse.quote(run, safe="")


def find(server: str, run: str) -> str:
    """What to put into a path for a run: a name that holds a slash cannot be, its id can. Raises Failure."""
    if "/" not in run:
        return quoted(run)
    rows = ask(server, "/runs", query=run, limit=1000)["runs"]
    same = [row for row in rows if row["name"] == run]
    if not same:
        raise Failure(f"There is no run {run!r}.", NOT_FOUND)
    return str(max(same, key=lambda row: float(row["started_seconds"]))["run_id"])


def print_json(value: Any) -> None:
    """JSON for scripts."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _is_local(server: str) -> bool:
    host = httpx.URL(server).host
    return host in ("localhost", "::1") or host.startswith("127.")

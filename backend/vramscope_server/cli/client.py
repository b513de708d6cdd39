"""How commands talk to the server, and say what went wrong."""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
from collections.abc import Iterable
from typing import Any, Final

import httpx

from vramscope.settings import with_scheme
from vramscope_server.cli.format import plain
from vramscope_server.cli.progress import Bar

CHECK_FAILED: Final = 1
BAD_WORDS: Final = 2
NOT_FOUND: Final = 3
NO_SERVER: Final = 4
CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 180
"""a server that is new here compiles before it replays for the first time: a minute and more on a busy machine"""


class Failure(Exception):
    """Ends a command with a sentence and an exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def ask(server: str, path: str, **parameters: Any) -> Any:
    """GET an answer of the API. Raises Failure: 3 not found, 4 no server or a broken one, 2 whatever else was refused.

    Parameters that are None or empty are left out.
    """
    response = _get(server, path, parameters)
    if steps := response.headers.get("Vramscope-Damaged-Steps"):
        print(f"vramscope: steps {plain(steps)} are damaged in the server's database and left out.", file=sys.stderr)
    return _read(server, response)


def fetch(server: str, path: str, **parameters: Any) -> bytes:
    """GET the bytes of something that is no JSON. Raises Failure as ask."""
    return _get(server, path, parameters).content


def send_file(server: str, path: str, pieces: Iterable[bytes], size_bytes: int, **parameters: Any) -> Any:
    """POST the bytes of a file as they come. Raises Failure as ask."""
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
    response = _request("POST", server, path, parameters, content=pieces, headers=headers)
    return _read(server, response)


class Told(dict[str, Any]):
    """An object of an answer. What a command looks for in it and does not find, only a server of another version tells."""

    def __missing__(self, name: str) -> Any:
        raise Failure(
            f"the server does not tell {name!r}, which this command needs: it is not of the same version. Upgrade the older of "
            "the two (vramscope --version; the server's stands on its page of settings).",
            NO_SERVER,
        )


def _read(server: str, response: httpx.Response) -> Any:
    try:
        return response.json(object_hook=Told)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise _not_ours(address(server), response) from None


def _get(server: str, path: str, parameters: dict[str, Any]) -> httpx.Response:
    with Bar("waiting for the server"):
        return _request("GET", server, path, parameters)


def _request(method: str, server: str, path: str, parameters: dict[str, Any], **body: Any) -> httpx.Response:
    base = address(server)
    token = os.environ.get("VRAMSCOPE_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token.isascii() and token else {}
    given = {name: _sendable(value) for name, value in parameters.items() if value not in (None, "")}
    patience = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        # A proxy of the environment cannot reach this machine's own loopback.
        client = httpx.Client(timeout=patience, trust_env=not is_local(base), headers=headers)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as fault:
        raise Failure(f"a proxy or certificate of the environment cannot be used: {fault}", BAD_WORDS) from None
    try:
        with client:
            response = client.request(method, f"{base}/api/v1{path}", params=given, **body)
    except httpx.TimeoutException as fault:
        seconds = CONNECT_SECONDS if isinstance(fault, httpx.ConnectTimeout) else ANSWER_SECONDS
        raise Failure(f"the server at {base} did not answer within {seconds} s.", NO_SERVER) from None
    except httpx.InvalidURL:  # (the server's address was read above)
        raise Failure("these words are too long to ask a server for.", BAD_WORDS) from None
    except httpx.HTTPError as fault:
        raise Failure(
            f"no server answers at {base} ({_why(fault)}). Start one with: {how_to_start(base)}", NO_SERVER
        ) from None
    if not response.is_success:
        raise _failure(base, response)
    return response


def address(server: str) -> str:
    """The server's address, without a slash at its end. Raises Failure if it is none."""
    text = with_scheme(server.strip().rstrip("/"))
    expected = f"{plain(server)!r} is not the address of a server, such as http://127.0.0.1:8265"
    try:
        url = httpx.URL(text)
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise Failure(expected, BAD_WORDS)
    except httpx.InvalidURL as error:
        raise Failure(f"{expected} ({error})", BAD_WORDS) from None
    except UnicodeEncodeError:
        raise Failure(expected, BAD_WORDS) from None
    if url.userinfo:
        raise Failure("a token goes into VRAMSCOPE_TOKEN, not into the address of the server.", BAD_WORDS)
    return text


def is_local(server: str) -> bool:
    """Whether an address means this machine's loopback."""
    host = httpx.URL(server).host
    return host in ("localhost", "::1") or host.startswith("127.")


def how_to_start(base: str) -> str:
    """The command that starts a server at an address, as far as that can be known."""
    port = httpx.URL(base).port
    return f"vramscope server --port {port}" if is_local(base) and port not in (None, 8265) else "vramscope server"


def path_of(server: str, run: str) -> str:
    """The part of a path that means a run. A name with a slash in it cannot stand in a path, its id can. Raises Failure."""
    if "/" not in run and run not in ("", ".", ".."):
        return urllib.parse.quote(_sendable(run), safe="")
    return id_of(server, run)


def id_of(server: str, run: str) -> str:
    """The id of the newest run of exactly this name. Raises Failure."""
    rows = ask(server, "/runs", query=run[:500], limit=1000)["runs"] if run.strip() else []
    same = [row for row in rows if row["name"] == run]
    if not same:
        raise Failure(f"There is no run {plain(run)!r}. There is: vramscope ls", NOT_FOUND)
    return str(max(same, key=lambda row: float(row["started_seconds"]))["run_id"])


def _sendable(value: Any) -> Any:
    """Text as UTF-8 can tell it: bytes of the command line that are none, from a terminal of another encoding, become U+FFFD."""
    return value.encode(errors="surrogateescape").decode(errors="replace") if isinstance(value, str) else value


def print_json(value: Any) -> None:
    """JSON for scripts, in ASCII: no locale can garble it."""
    print(json.dumps(value, indent=2))


def _failure(base: str, response: httpx.Response) -> Failure:
    try:
        problem: dict[str, Any] = response.json()
        kind, detail = str(problem["type"]), plain(str(problem["detail"]))
    except (ValueError, KeyError, TypeError):
        return _not_ours(base, response)
    if not kind.startswith("urn:vramscope:problem:"):
        return _not_ours(base, response)
    if response.status_code == 404:
        near = [plain(str(name)) for name in problem.get("suggestions") or []]
        return Failure(f"{detail} {'There is: ' + ', '.join(near) if near else ''}".strip(), NOT_FOUND)
    if response.status_code in (401, 403):
        detail += " (VRAMSCOPE_TOKEN holds the token; it needs the scope read)"
    return Failure(detail, NO_SERVER if response.status_code >= 500 else BAD_WORDS)


def _not_ours(base: str, response: httpx.Response) -> Failure:
    return Failure(f"what answers at {base} is not a vramscope server (status {response.status_code}).", NO_SERVER)


def _why(fault: httpx.HTTPError) -> str:
    """``[Errno 111] Connection refused`` without its number."""
    return str(fault).rpartition("] ")[2] or type(fault).__name__

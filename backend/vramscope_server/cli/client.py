"""HTTP client of the commands: requests and error messages."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import httpx

from vramscope.setting_values import is_loopback, with_scheme
from vramscope.transport.tls import tls_problem
from vramscope_server.answers.runs import RunList
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS, NO_SERVER, NOT_FOUND
from vramscope_server.cli.format import plain
from vramscope_server.cli.progress import Bar
from vramscope_server.reports.source import AnswerSource

CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 180
"""A new installation compiles before its first replay, which may take more than a minute."""


class Failure(Exception):
    """Error that ends a command with a sentence and an exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Unreachable(Failure):
    """No server answers, or something else does: a later try may succeed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, NO_SERVER)


def ask(server: str, path: str, **parameters: Any) -> Any:
    """GET an answer of the API. Raises Failure: 3 not found, 4 no or a broken server, 2 any other refusal.

    Parameters that are None or empty are left out.
    """
    return _read(server, _get(server, path, parameters))


def source_of(server: str) -> AnswerSource:
    """Return the answers of a server for a report. They raise Failure as ``ask`` does."""
    return functools.partial(ask, server)


def fetch(server: str, path: str, **parameters: Any) -> bytes:
    """GET bytes. Raises Failure as ``ask`` does."""
    return _get(server, path, parameters).content


def change(server: str, path: str, values: Mapping[str, Any]) -> None:
    """PATCH fields. Raises Failure as ``ask`` does."""
    _request("PATCH", server, path, {}, json=dict(values))


class Answer(dict[str, Any]):
    """Object of an answer. A missing field means that the server has another version."""

    def __missing__(self, name: str) -> Any:
        raise Failure(
            f"the server's answer has no field {name!r}: its version differs. Upgrade the older of the two "
            "(vramscope --version; the server's version is in Settings).",
            NO_SERVER,
        )


def _read(server: str, response: httpx.Response) -> Any:
    try:
        return response.json(object_hook=Answer)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise _not_ours(address(server), response) from None


def _get(server: str, path: str, parameters: dict[str, Any]) -> httpx.Response:
    with Bar("waiting for the server"):
        response = _request("GET", server, path, parameters)
    if steps := response.headers.get("Vramscope-Damaged-Steps"):
        print(
            f"vramscope: steps {plain(steps)} are damaged in the server's database and missing here.", file=sys.stderr
        )
    return response


def _request(method: str, server: str, path: str, parameters: dict[str, Any], **body: Any) -> httpx.Response:
    with Connection(server) as connection:
        return connection.request(method, path, parameters, **body)


class Connection:
    """Connection to a server, for one request or several. Raises Failure if its address or the proxy cannot be used."""

    def __init__(self, server: str) -> None:
        self._base = address(server)
        self._client = _client(self._base)

    def __enter__(self) -> Connection:
        self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def request(self, method: str, path: str, parameters: Mapping[str, Any] = {}, **body: Any) -> httpx.Response:
        """Send a request. Raises Failure as ``ask`` does."""
        base = self._base
        query = {name: _sendable(value) for name, value in parameters.items() if value not in (None, "")}
        try:
            response = self._client.request(method, f"{base}/api/v1{path}", params=query, **body)
        except httpx.TimeoutException as fault:
            seconds = CONNECT_SECONDS if isinstance(fault, httpx.ConnectTimeout) else ANSWER_SECONDS
            raise Unreachable(f"the server at {base} did not answer within {seconds} s.") from None
        except httpx.InvalidURL:  # the server's address was read above
            raise Failure("the request is too long.", BAD_ARGUMENTS) from None
        except httpx.HTTPError as fault:
            if problem := tls_problem(base, fault):
                raise Unreachable(f"{problem}.") from None
            raise Unreachable(
                f"no server answers at {base} ({_why(fault)}). Start one with: {how_to_start(base)}"
            ) from None
        if not response.is_success:
            raise _failure(base, response)
        return response

    def ask(self, method: str, path: str, parameters: Mapping[str, Any] = {}, **body: Any) -> Any:
        """The answer to a request, decoded. Raises Failure as ``ask`` does."""
        return _read(self._base, self.request(method, path, parameters, **body))


def _client(base: str) -> httpx.Client:
    token = os.environ.get("VRAMSCOPE_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token.isascii() and token else {}
    patience = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        # The certificates are those of SSL_CERT_FILE, on loopback too. They take 20 ms to load.
        verified = httpx.create_ssl_context() if base.startswith("https:") else False
        return httpx.Client(timeout=patience, trust_env=not is_loopback(base), headers=headers, verify=verified)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as fault:
        raise Failure(f"a proxy or certificate of the environment cannot be used: {fault}", BAD_ARGUMENTS) from None


def address(server: str) -> str:
    """Return the server's address without a trailing slash. Raises Failure if it is not an address."""
    text = with_scheme(server.strip().rstrip("/"))
    expected = f"{plain(server)!r} is not a server address, such as http://127.0.0.1:8265"
    try:
        url = httpx.URL(text)
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise Failure(expected, BAD_ARGUMENTS)
    except httpx.InvalidURL as error:
        raise Failure(f"{expected} ({error})", BAD_ARGUMENTS) from None
    except UnicodeEncodeError:
        raise Failure(expected, BAD_ARGUMENTS) from None
    if url.userinfo:
        raise Failure("set the token in VRAMSCOPE_TOKEN, not in the server address.", BAD_ARGUMENTS)
    return text


def how_to_start(base: str) -> str:
    """Return the command that starts a server at an address."""
    port = httpx.URL(base).port
    return f"vramscope server --port {port}" if is_loopback(base) and port not in (None, 8265) else "vramscope server"


def path_of(server: str, run: str) -> str:
    """Return the URL path segment of a run. A name with a slash is replaced by its id. Raises Failure."""
    if "/" not in run and run not in ("", ".", ".."):
        return urllib.parse.quote(_sendable(run), safe="")
    return id_of(server, run)


def id_of(server: str, run: str) -> str:
    """Return the id of the newest run with exactly this name. Raises Failure."""
    listed: RunList | None = ask(server, "/runs", query=run[:500], limit=1000) if run.strip() else None
    same = [row for row in listed["runs"] if row["name"] == run] if listed is not None else []
    if not same:
        raise Failure(f"Run {plain(run)!r} not found. List runs: vramscope ls", NOT_FOUND)
    return max(same, key=lambda row: row["started_seconds"] or 0.0)["run_id"]


def _sendable(value: Any) -> Any:
    """Replace bytes that are not UTF-8, from a terminal of another encoding, by U+FFFD."""
    return value.encode(errors="surrogateescape").decode(errors="replace") if isinstance(value, str) else value


def print_json(value: Any) -> None:
    """Print JSON in ASCII, independent of the locale."""
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
        near = [shlex.quote(plain(str(name))) for name in problem.get("suggestions") or []]
        return Failure(f"{detail} {'Did you mean: ' + ', '.join(near) if near else ''}".strip(), NOT_FOUND)
    if response.status_code == 401 and "Authorization" not in response.request.headers:
        detail = f"The server at {base} asks for a token."
    if response.status_code in (401, 403):
        detail += f" (set VRAMSCOPE_TOKEN to a token with the role {plain(str(problem.get('expected') or 'read'))})"
    return Failure(detail, NO_SERVER if response.status_code >= 500 else BAD_ARGUMENTS)


def _not_ours(base: str, response: httpx.Response) -> Failure:
    return Unreachable(f"{base} is not a vramscope server (status {response.status_code}).")


def _why(fault: httpx.HTTPError) -> str:
    """Return the reason of a failure without its error number."""
    return str(fault).rpartition("] ")[2] or type(fault).__name__

"""Posts one batch to the server and interprets the answer. Knows HTTP only, neither ring nor spool nor threads."""

from __future__ import annotations

import contextlib
import email.utils
import http
import importlib
import os
import sys
import time
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

import vramscope
from vramscope.guard import first_line
from vramscope.protocol import content_digest, messages
from vramscope.setting_values import is_loopback
from vramscope.transport.deadline import Deadline
from vramscope.transport.quiet_logs import own_request
from vramscope.transport.tls import tls_problem

if TYPE_CHECKING:
    import httpx

PATH: Final = "/api/v1/batches"
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Maximum size of an answer. An Ack has about 30 bytes and a problem a few hundred; a longer answer is not from a vramscope
server."""

KEEP_ALIVE_S: Final = 4.0
"""Time an idle connection is reused. Below the 5 s after which uvicorn closes it, so that a closed one is rare."""

MAX_RETRY_AFTER_S: Final = 300.0

PROBLEMS: Final = "urn:vramscope:problem"
"""Beginning of the type of each problem that a vramscope server answers with."""
REJECTIONS: Final = frozenset({"invalid-batch", "not-messagepack"})
"""Problems of a batch that no later try can solve. Whatever else answers, the batch is kept."""

_CLIENT_ERRORS: Final = (ImportError, ValueError, OSError)
"""Errors of a client that cannot be made: a proxy that httpx does not support, unreadable certificates."""

Outcome = Literal["stored", "away", "busy", "refused", "rejected", "too_large", "unknown_session"]
"""Result of a POST:

stored           the server has stored it
away             no server, or no answer: try again later
busy             the server asks to wait
refused          the server takes nothing: wrong token or project, another wire version, or it is not a vramscope server
rejected         the server itself takes other batches, but never this one
too_large        the server, or a proxy before it, takes smaller ones
unknown_session  the server needs an Attached message first
"""


class ServerAnswer(NamedTuple):
    """Result of one POST."""

    outcome: Outcome
    text: str = ""
    """Message for the user: the server's own, or why there was no answer."""
    retry_after_s: float | None = None
    ack: messages.Ack | None = None
    by_server: bool = True
    """False if the answer is not from a vramscope server but from a proxy, for example. No batch is then rejected for good."""
    of_session: bool = False
    """True if the server refuses this session, and may take others: the token may not send to its project, for example."""

    def to_single_row(self) -> ServerAnswer:
        """Return the answer for a batch that cannot be split. If only a proxy refuses its size, the batch is kept."""
        return self._replace(outcome="refused") if self.outcome == "too_large" and not self.by_server else self


class ServerConnection:
    """A keep-alive connection to one server. Used by one thread at a time."""

    def __init__(self, server: str, token: str | None, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.server = server
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s
        self._token = token
        self._client: httpx.Client | None = None
        self._deadline = Deadline()

    def prepare(self) -> None:
        """Import what a POST needs: about 0.3 s the first time, on the caller's thread.

        A fork during another thread's import leaves the child with a lock that is never released. An import during a Ctrl-C
        can change the exit code of the training.

        """
        import encodings.idna  # socket imports it at the first name resolution

        _ = encodings.idna
        if self._client is None:
            with _without_command():
                import httpx  # the rest is imported with the first client

            with contextlib.suppress(*_CLIENT_ERRORS, httpx.InvalidURL):  # the first POST reports it
                self._client = self._connect()

    def post(self, body: bytes, *, timeout_s: float | None = None) -> ServerAnswer:
        """Send one encoded batch and interpret the answer. Waits for the timeouts at most; never raises for the network."""
        import httpx

        try:
            if self._client is None:
                self._client = self._connect()
        except (*_CLIENT_ERRORS, httpx.InvalidURL) as fault:
            return ServerAnswer("away", f"cannot connect to {self.server} ({first_line(fault)})")
        limit_s = self.read_timeout_s if timeout_s is None else max(0.05, min(timeout_s, self.read_timeout_s))
        timeout = httpx.Timeout(limit_s, connect=min(self.connect_timeout_s, limit_s))
        whole_s = 2 * limit_s
        try:
            with self._deadline.within(whole_s):
                try:
                    return self._post_once(body, timeout)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    # Usually a kept connection that the server has just closed (a restart). A second try on
                    # a new one is safe: a batch that arrives twice is stored once.
                    if self._deadline.has_passed:
                        raise
                    return self._post_once(body, timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout) as fault:
            return ServerAnswer("away", tls_problem(self.server, fault) or f"no server at {self.server}")
        except httpx.TimeoutException:
            return ServerAnswer("away", f"the server at {self.server} did not answer within {limit_s:.3g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
            if self._deadline.has_passed:
                return ServerAnswer(
                    "away", f"the server at {self.server} did not end its answer within {whole_s:.3g} s"
                )
            return ServerAnswer("away", f"the connection to {self.server} failed ({type(fault).__name__})")

    @own_request()
    def download(self, path: str, *, timeout_s: float, most_bytes: int) -> bytes | None:
        """Return the body of a GET; None if there is none, if it is too large, or if it comes too late."""
        import httpx

        try:
            if self._client is None:
                self._client = self._connect()
            limits = httpx.Timeout(timeout_s, connect=min(self.connect_timeout_s, timeout_s))
            body = bytearray()
            extensions = {"trace": self._deadline.note_connection}
            with (
                self._deadline.within(timeout_s),
                self._client.stream("GET", self.server + path, timeout=limits, extensions=extensions) as response,
            ):
                for piece in response.iter_raw() if response.status_code == 200 else ():
                    body += piece
                    if len(body) > most_bytes:
                        return None
            return bytes(body) or None
        except (*_CLIENT_ERRORS, httpx.InvalidURL, httpx.HTTPError):
            return None

    @own_request()
    def _post_once(self, body: bytes, timeout: httpx.Timeout) -> ServerAnswer:
        assert self._client is not None
        trace = {"trace": self._deadline.note_connection}
        headers = {content_digest.HEADER: content_digest.content_digest(body)}
        with self._client.stream(
            "POST", self.server + PATH, content=body, headers=headers, timeout=timeout, extensions=trace
        ) as response:
            answer = bytearray()
            for piece in response.iter_raw():
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    return ServerAnswer("refused", f"what answers at {self.server} is not a vramscope server")
            return self._judge(response.status_code, response.headers, bytes(answer))

    @own_request()
    def _connect(self) -> httpx.Client:
        import httpx

        headers = {
            "Content-Type": messages.CONTENT_TYPE,
            "Accept": f"{messages.CONTENT_TYPE}, application/problem+json",
            "Accept-Encoding": "identity",
            "User-Agent": f"vramscope-agent/{vramscope.__version__}",
        }
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return httpx.Client(
            headers=headers,
            # Loading certificates takes 20 ms and is not needed for http.
            verify=httpx.create_ssl_context() if urlsplit(self.server).scheme == "https" else False,
            trust_env=not is_loopback(self.server),  # clusters often lack NO_PROXY
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
        )

    def _judge(self, status: int, headers: httpx.Headers, body: bytes) -> ServerAnswer:
        if 200 <= status < 300:
            try:
                ack = messages.decode_ack(body)
            except msgspec.MsgspecError:
                return ServerAnswer("refused", f"what answers at {self.server} is not a vramscope server")
            return ServerAnswer("stored", ack=ack)
        problem = _problem(body)
        source, _, kind = str(problem.get("type", "")).rpartition(":")
        by_server = source == PROBLEMS
        text = f"the server at {self.server} answered: {_problem_text(status, problem)}"
        if by_server and kind in ("wire-version", "project"):
            return ServerAnswer("refused", text, of_session=kind == "project")
        if by_server and kind == "unknown-session":
            return ServerAnswer("unknown_session", text)
        if by_server and kind in REJECTIONS:
            return ServerAnswer("rejected", text)
        if status in (401, 403):
            hint = " (set the token with VRAMSCOPE_TOKEN)"
            return ServerAnswer("refused", text + hint, of_session=by_server and status == 403)
        if status == 413:
            return ServerAnswer("too_large", text, by_server=by_server)
        if status in (408, 425, 429) or status >= 500:
            return ServerAnswer("busy", text, retry_after_s=_retry_after_s(headers.get("Retry-After")))
        if status == 407:
            return ServerAnswer(
                "refused", f"the proxy before {self.server} asks for credentials (set HTTPS_PROXY or NO_PROXY)"
            )
        return ServerAnswer("refused", f"{text} (is it a vramscope server?)")

    @own_request()
    def close(self) -> None:
        """Close the connection."""
        self._deadline.close()
        self._deadline = Deadline()
        if self._client is not None:
            self._client.close()
            self._client = None

    def forget(self) -> None:
        """Drop the connection in a forked child without sending anything: it belongs to the parent."""
        self._client = None
        kept, self._deadline = self._deadline.socket, Deadline()
        if kept is not None:
            # The client's own close() takes locks that a thread of the parent may have had.
            with contextlib.suppress(OSError):
                os.close(kept.detach())


@contextlib.contextmanager
def _without_command() -> Iterator[None]:
    """Let httpx be imported without its command line, whose imports (click, rich, pygments) take three times as long as httpx.

    The import of rich also changes the state of the user's random generator. It could not be restored afterwards:
    random.setstate() would repeat numbers that another thread has drawn in the meantime.
    """
    name = "httpx._main"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stub = types.ModuleType(name)
    stub.main = lambda: importlib.import_module(name).main()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if sys.modules.get(name) is stub:
            del sys.modules[name]


def _problem(body: bytes) -> dict[str, Any]:
    """Decode application/problem+json; {} if it is none."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _problem_text(status: int, problem: dict[str, Any]) -> str:
    """Return the problem's title and detail."""
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    words = [str(problem[key]).strip() for key in ("title", "detail") if isinstance(problem.get(key), str)]
    text = ": ".join(word for word in words if word) or f"{status} {phrase}".strip()
    return " ".join(text.split())[:500]


def _retry_after_s(value: str | None) -> float | None:
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        at_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, at_s - time.time()), MAX_RETRY_AFTER_S)

"""One batch to the server, and what its answer means for us. Knows HTTP; knows nothing of rings, spools or threads."""

from __future__ import annotations

import contextlib
import email.utils
import http
import random
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

import vramscope
from vramscope.guard import first_line
from vramscope.protocol import messages

if TYPE_CHECKING:
    import httpx

PATH: Final = "/api/v1/batches"
MAX_ANSWER_BYTES: Final = 64 * 1024
"""An Ack has about thirty bytes, a problem a few hundred; more is not from a server of ours."""

KEEP_ALIVE_S: Final = 4.0
"""Below the 5 s after which uvicorn closes an idle connection, so that we rarely meet a closed one."""

MAX_RETRY_AFTER_S: Final = 300.0

_NO_WAY: Final = (ImportError, ValueError, OSError)
"""A proxy of the environment that httpx does not know, or for which it lacks a package; certificates that cannot be read."""

Outcome = Literal["stored", "away", "busy", "refused", "rejected", "too_large", "unknown_session"]
"""stored           it is the server's now
away             nobody there, or no answer: try again later
busy             the server asks for patience
refused          the server takes nothing from us as things are: token, wire version, or it is no server of ours
rejected         the server takes other batches, but never this one
too_large        the server, or a proxy before it, takes smaller ones
unknown_session  the server wants to hear first who we are (Attached)"""


class ServerAnswer(NamedTuple):
    """What became of one POST."""

    outcome: Outcome
    text: str = ""
    """for the person at the terminal: what the server said, or why there was no answer"""
    retry_after_s: float | None = None
    ack: messages.Ack | None = None


class ServerConnection:
    """A keep-alive connection to one server. Used by one thread at a time."""

    def __init__(self, server: str, token: str | None, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.server = server
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s
        self._token = token
        self._client: httpx.Client | None = None

    def prepare(self) -> None:
        """Import what a POST needs: about 0.3 s the first time, on the caller's thread, so that no other thread does it.

        A fork while a thread is in the middle of an import leaves the child with a lock that nobody will ever let go;
        and an import at the moment of a Ctrl-C can change the exit code of the training.
        """
        import encodings.idna  # socket imports it at the first look-up of a name

        _ = encodings.idna
        if self._client is None:
            # (Where rich is installed httpx imports it, and that draws from the generator that a training seeds.)
            state = random.getstate()
            try:
                import httpx  # half of it: the rest comes with the first client

                with contextlib.suppress(
                    *_NO_WAY, httpx.InvalidURL
                ):  # (what there is to say is said of the first POST)
                    self._client = self._connect()
            finally:
                random.setstate(state)

    def post(self, body: bytes, *, timeout_s: float | None = None) -> ServerAnswer:
        """Send one encoded batch and judge the answer. Waits for the timeouts at most; never raises for the network."""
        import httpx

        try:
            if self._client is None:
                self._client = self._connect()
        except (*_NO_WAY, httpx.InvalidURL) as fault:
            return ServerAnswer("away", f"no way to {self.server} ({first_line(fault)})")
        limit_s = self.read_timeout_s if timeout_s is None else max(0.05, min(timeout_s, self.read_timeout_s))
        timeout = httpx.Timeout(limit_s, connect=min(self.connect_timeout_s, limit_s))
        try:
            try:
                return self._post_once(body, timeout)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # Most often a kept connection that the server closed in this very moment (a restart). A second try on
                # a new one is safe: a batch that arrives twice is stored once.
                return self._post_once(body, timeout)
        except (httpx.ConnectError, httpx.ConnectTimeout) as fault:
            return ServerAnswer("away", f"no server at {self.server}{_certificate_words(fault)}")
        except httpx.TimeoutException:
            return ServerAnswer("away", f"the server at {self.server} did not answer within {limit_s:.3g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
            return ServerAnswer("away", f"the connection to {self.server} broke ({type(fault).__name__})")

    def _post_once(self, body: bytes, timeout: httpx.Timeout) -> ServerAnswer:
        assert self._client is not None
        whole_s = 2 * (timeout.read or 0)
        give_up_at = time.monotonic() + whole_s
        with self._client.stream("POST", self.server + PATH, content=body, timeout=timeout) as response:
            answer = bytearray()
            for piece in response.iter_raw():
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    return ServerAnswer("refused", f"what answers at {self.server} is not a vramscope server")
                # A server that answers a byte now and then would keep us here for ever.
                if time.monotonic() > give_up_at:
                    return ServerAnswer(
                        "away", f"the server at {self.server} did not end its answer within {whole_s:.3g} s"
                    )
            return self._judge(response.status_code, response.headers, bytes(answer))

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
        parts = urlsplit(self.server)
        host = parts.hostname or ""
        # A proxy from the environment cannot reach this machine's own loopback, and clusters often forget NO_PROXY.
        loopback = host in ("localhost", "::1") or host.startswith("127.")
        return httpx.Client(
            headers=headers,
            # (Over http the certificates need not even be loaded: 20 ms.)
            verify=httpx.create_ssl_context() if parts.scheme == "https" else False,
            trust_env=not loopback,
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
        kind, said = str(problem.get("type", "")).rpartition(":")[2], _said(status, problem)
        text = f"the server at {self.server} said: {said}"
        if "wire" in kind:
            return ServerAnswer("refused", text)
        if "session" in kind:
            return ServerAnswer("unknown_session", text)
        if status in (401, 403):
            return ServerAnswer("refused", text + " (VRAMSCOPE_TOKEN holds the token)")
        if status < 400 or status in (404, 405, 409, 421, 426):
            return ServerAnswer("refused", f"{text} (is that a vramscope server?)")
        if status == 413:
            return ServerAnswer("too_large", text)
        if status in (408, 425, 429) or status >= 500:
            return ServerAnswer("busy", text, retry_after_s=_retry_after_s(headers.get("Retry-After")))
        return ServerAnswer("rejected", text)

    def close(self) -> None:
        """Let the connection go."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def forget(self) -> None:
        """In a forked child: let go of the connection without a word on the wire, since it is the parent's."""
        self._client = None


def _certificate_words(fault: Exception) -> str:
    return f" ({str(fault)[:200]})" if "CERTIFICATE" in str(fault) or "SSL" in str(fault) else ""


def _problem(body: bytes) -> dict[str, Any]:
    """An application/problem+json, as far as it is one."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _said(status: int, problem: dict[str, Any]) -> str:
    """Its title and detail, for people."""
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    words = [str(problem[key]).strip() for key in ("title", "detail") if isinstance(problem.get(key), str)]
    said = ": ".join(word for word in words if word) or f"{status} {phrase}".strip()
    return " ".join(said.split())[:500]


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

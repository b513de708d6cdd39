"""Whatever certificate a server shows, nothing is sent to a stranger, and every row arrives once when the certificate is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import figures
import pytest
import trustme
from running import RunningServer
from sending import Training, sender_to
from tls_front import KINDS, TlsFront
from waiting import eventually

import vramscope
from vramscope.client.errors import ServerError
from vramscope.guard import guard
from vramscope.process import terminal
from vramscope.transport import backoff
from vramscope.transport.http import ServerConnection
from vramscope_server.cli.exit_codes import NO_SERVER

SAID = {
    "expired": "the certificate of {url} is not valid (certificate has expired)",
    "future": "the certificate of {url} is not valid (certificate is not yet valid)",
    "other_name": "the certificate of {url} is not valid (IP address mismatch, certificate is not valid for '127.0.0.1')",
    "other_authority": "is not valid (unable to get local issuer certificate); set SSL_CERT_FILE to a file with the certificate of",
    "silent": "no server at {url}",
    "plain": "; is it http?)",
    "garbage": "no encrypted connection to {url} (",
    "reset": "no server at {url}",
}
"""What the agent says of each kind."""


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """An authority that this process knows."""
    known = trustme.CA()
    known.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return known


@pytest.fixture
def make_front(authority: trustme.CA) -> Iterator[Callable[[str], TlsFront]]:
    """Encrypted fronts of servers."""
    made: list[TlsFront] = []

    def make(server: str) -> TlsFront:
        made.append(TlsFront(server, authority))
        return made[-1]

    yield make
    for front in made:
        front.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_reason_is_said_in_words(make_front: Callable[[str], TlsFront], kind: str) -> None:
    front = make_front("http://127.0.0.1:9")
    front.set(kind)
    seconds = 1.0 if kind == "silent" else 20.0
    connection = ServerConnection(front.url, None, connect_timeout_s=seconds, read_timeout_s=seconds)
    answer = connection.post(b"")
    connection.close()
    assert answer.outcome == "away", "the batch is kept"
    assert SAID[kind].format(url=front.url) in answer.text
    assert "_ssl.c" not in answer.text


def test_no_certificate_loses_a_row(
    start_server: Callable[..., RunningServer],
    make_front: Callable[[str], TlsFront],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "raise_faults", True)
    monkeypatch.setattr(backoff, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(backoff, "SHORTEST_PAUSE_S", 0.02)
    terminal.forget_printed()
    server = start_server()
    front = make_front(server.url)
    sender, run = sender_to(front.url, tmp_path / "spool")
    sender.start()
    training = Training(sender)
    try:
        for kind in KINDS:
            front.set(kind)
            eventually(lambda: front.met >= 2, 30)
            sent = sender.sent_batches
            front.set("good")
            eventually(lambda sent=sent: sender.sent_batches > sent, 30)  # type: ignore[misc]
    finally:
        training.end()
        arrived = sender.close(30)
    assert arrived, "everything arrived"
    assert sender.dropped_rows == 0
    assert not list((tmp_path / "spool").glob("*/*")), "nothing is left behind or set aside"
    assert server.get(f"/runs/{run}/series", names="step", points=4000, x="time")["rows"] == training.rows
    figures.keep("certificates and handshakes", faults=len(KINDS), lost=0, rows_kept=training.rows)


def test_commands_and_the_client_verify_the_server_too(
    start_server: Callable[..., RunningServer],
    make_front: Callable[[str], TlsFront],
    cli: Callable[..., tuple[int, str, str]],
) -> None:
    front = make_front(start_server().url)
    code, _, error = cli("ls", "--server", front.url)
    assert code == 0, error
    with vramscope.Client(front.url) as client:
        assert list(client.runs()) == []
    front.set("other_authority")
    code, _, error = cli("ls", "--server", front.url)
    assert code == NO_SERVER
    assert SAID["other_authority"] in error and "Start one" not in error
    with vramscope.Client(front.url) as client, pytest.raises(ServerError, match="SSL_CERT_FILE"):
        list(client.runs())

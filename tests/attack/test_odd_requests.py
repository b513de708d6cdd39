"""Requests that no client of ours sends: odd heads, mutated JSON, paths that lead elsewhere. Each answer is 2xx or 4xx, and
nothing is stored."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from mutation import Mutation
from running import RunningServer
from stored_runs import PLAIN
from test_mutated_input import Attack, stored  # noqa: F401 - the fixture
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope.protocol.content_digest import content_digest

SEEDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("PATCH", f"/runs/{PLAIN}", {"project": "p", "name": "n", "tags": ["a", "b"], "note": "x", "pinned": True, "baseline": False}),
    ("POST", "/recordings/windowplain1/whatif", {"confs": ["expandable_segments:True", "max_split_size_mb:64"]}),
    ("POST", "/snapshots/uploads", {"name": "a.pickle", "size_bytes": 5000, "project": "p"}),
    ("POST", "/tokens", {"name": "t", "role": "read", "projects": ["a"]}),
    ("PATCH", "/alerts", {"leaks": {"on": True, "least_bytes": 5}, "headroom": {"below_fraction": 0.1}}),
    ("POST", "/session", {"token": "vs_x"}),
)  # fmt: skip
RAW = (
    b"", b"null", b'""', b"[" * 100_000, b'{"a":' * 50_000, b"NaN", b"-Infinity", b"1" * 6000, b'{"name":' + b"9" * 5000 + b"}",
    b'{"name":"\\ud800","note":"\\udfff","role":"read","size_bytes":5,"token":"\\ud83d"}', b'{"\\ud800":1}',
    b'{"tags":["\\ud800"]}',
    b'{"confs":["\\ud800"]}', b'{"confs":["garbage_collection_threshold:nan"]}',
    b'{"confs":["max_split_size_mb:99999999999999999999"]}',
    b'{"name":"a\\u0000/../b","size_bytes":5,"role":"read"}', b'{"leaks":{"least_bytes":18446744073709551616}}',
    b'{"headroom":{"below_fraction":NaN}}', b'{"forecast":{"below_seconds":1e400}}', b"\xff\xfe{\x00}\x00",
    b'{"name":"a","name":"b"}',
)  # fmt: skip
TYPES = ("application/json", "application/json; charset=utf-16", "text/plain", "multipart/form-data; boundary=x", "")
HEADS = (
    b"Cookie: " + b"a=b; " * 12_000, b"Cookie: vramscope_token=\xff\xfe; =; ;;; a", b'Cookie: vramscope_token="\\377\\400"',
    b"Authorization: Bearer \xff\xfe\xed\xa0\x80", b"Authorization: Basic :::", b"Origin: http://[", b"Range: bytes=5-1",
    b"Range: bytes=" + b",".join(b"%d-%d" % (at, at + 1) for at in range(2000)), b"X-Forwarded-For: \xff, ,,[::1, 1.2.3.4:99999",
    b"X-Forwarded-For: " + b"1.1.1.1, " * 6000, b"X-Forwarded-Proto: \xff\x80", b"Y", b"X: a\r\n b", b"X: a\0b",
    b"\r\n".join(b"X-%d: y" % number for number in range(4000)), b'If-None-Match: W/"\xff"',
    b"If-Modified-Since: Thu, 99 Foo 99999",
    b"Accept-Encoding: gzip;q=abc, *;q=-1", b"Accept: text/event-stream", b"Expect: 200-maybe",
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMA",
    b"Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13",
)  # fmt: skip
HOSTS = (
    b"", b"a b", b"127.0.0.1:99999999", b"[::1", b"[::1]:x", b"evil.example", b"localhost.", b"user@127.0.0.1", b"127.0.0.1/..",
    b"\xff",
    b"127.0.0.1\r\nHost: evil.example",
)  # fmt: skip
TARGETS = (
    b"/../../etc/passwd", b"/..%2f..%2fetc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/assets/..%2f..%2fsettings.py", b"/assets/%00",
    b"/assets//etc/passwd", b"/assets/..%5c..%5cx", b"//evil.example/", b"/%00", b"/api/v1/runs/%00", b"/api/v1/runs/%ff%fe",
    b"/api/v1/runs/%ed%a0%80", b"/api/v1//runs", b"/api/v1/runs/a%2fb", b"/api/v1/runs/" + b"a" * 60_000, b"/api/v1/runs?limit=%ff",
    b"/api/v1/runs?" + b"&".join(b"a%d=1" % number for number in range(5000)), b"/api/v1/runs?q=%ed%a0%80",
    b"/api/v1/runs?cursor=%00%ff",
    b"/api/v1/live/delta?after=99999999999999999999999&runs=" + b"x," * 9000, b"/api/v1/live/delta?after=-1", b"*",
    b"/api/v1/live/delta?after=%D9%A3", b"/api/v1/snapshots/uploads/..%2f..%2fx", b"/api/v1/snapshots/uploads/%00?offset=1e9",
    b"/;/..;/api/v1/tokens", b"http://evil.example/api/v1/health", b"/api/v1/session/oidc/callback?code=%00&state=%ff",
    b"/\xc3\xa9",
)  # fmt: skip
METHODS = (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"PATCH", b"DELETE", b"POST", b"TRACE", b"CONNECT", b"get", b"FOO")


def exchange(server: RunningServer, request: bytes) -> bytes:
    """All that is answered until the server closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request)
        try:
            while piece := connection.recv(65536):
                received += piece
        except ConnectionResetError:  # the rest of the request was not read
            pass
    return received


def answers(server: RunningServer, request: bytes) -> list[int]:
    """Statuses of all answers."""
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d{3})", exchange(server, request), re.MULTILINE)]


def head(method: bytes = b"GET", target: bytes = b"/api/v1/health", host: bytes = b"127.0.0.1", *lines: bytes) -> bytes:
    return b"\r\n".join(
        [method + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *lines, b"", b""]
    )


def refused(server: RunningServer, request: bytes) -> None:
    """It is answered, once, and not by a fault."""
    found = answers(server, request)
    assert len([status for status in found if status >= 200]) == 1, (request[:300], found)
    assert all(status < 500 for status in found), (request[:300], found)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_mutated_json(stored: tuple[RunningServer, str], choice: random.Random, count: int) -> None:  # noqa: F811
    attack = Attack(stored[0])
    mutation = Mutation(choice)
    sent = [(seed, raw, choice.choice(TYPES)) for seed in SEEDS for raw in RAW]
    for _ in range(count):
        seed = choice.choice(SEEDS)
        tree = json.dumps(mutation.tree(seed[2]), default=lambda data: data.decode("latin1")).encode()
        sent.append((seed, tree if choice.random() < 0.7 else mutation.bytes(json.dumps(seed[2]).encode()), TYPES[0]))
    for (method, path, _), body, kind in sent:
        attack.ask(method, path, content=body, headers={"Content-Type": kind})
    for path in ("/runs", f"/runs/{PLAIN}", "/tokens", "/alerts", "/audit", "/snapshots", "/server"):
        assert attack.ask("GET", path).status_code == 200
    assert attack.server.get("/health") == {"status": "ok"}


def test_odd_heads_hosts_and_targets(stored: tuple[RunningServer, str]) -> None:  # noqa: F811
    server = stored[0]
    # A run is found by its name, too: one that mutated JSON has named "\0" is what DELETE /runs/%00 deletes.
    assert server.http.patch(f"/runs/{PLAIN}", json={"name": "plain"}).status_code == 200
    before = {one["run_id"] for one in server.get("/runs")["runs"]}
    for line in HEADS:
        refused(server, head(b"GET", b"/api/v1/runs", b"127.0.0.1", line))
        refused(server, head(b"POST", b"/api/v1/batches", b"127.0.0.1", line, b"Content-Length: 0"))
    for host in HOSTS:
        refused(server, head(host=host))
    for target in TARGETS:
        for method in METHODS:
            refused(server, head(method, target, b"127.0.0.1", b"Content-Length: 0"))
    for request in (
        b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\xc8" * 9,
    ):  # fmt: skip
        refused(server, request)
    assert server.get("/health") == {"status": "ok"}
    assert {one["run_id"] for one in server.get("/runs")["runs"]} == before


def test_a_file_outside_the_pages_is_never_sent(stored: tuple[RunningServer, str]) -> None:  # noqa: F811
    passwd = Path("/etc/passwd").read_bytes()[:20]
    for target in TARGETS[:9]:
        answer = exchange(stored[0], head(target=target))
        assert b"<title>" in answer or b" 404 Not Found" in answer, target
        assert passwd not in answer and b"env_prefix" not in answer, target


def test_bodies_whose_length_is_unclear_are_refused_and_nothing_of_them_is_stored(
    stored: tuple[RunningServer, str],  # noqa: F811
) -> None:
    """Two lengths, or a length and chunks, are how a request is hidden in another one."""
    server, agent = stored[0], Agent(name="hidden")
    body = agent.body(agent.samples(2))
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    length = b"Content-Length: %d" % len(body)
    zipped = gzip.compress(body)
    kind = b"Content-Type: " + messages.CONTENT_TYPE.encode()
    for lines, content in (
        ([length, b"Content-Length: 5"], body), ([length, length], body), ([b"Content-Length: -5"], body),
        ([b"Content-Length: +5"], body),
        ([b"Content-Length: 0x10"], body), ([b"Content-Length: " + b"9" * 40], body), ([b"Content-Length:"], body),
        ([b"Transfer-Encoding: chunked", b"Content-Length: 3"], chunked), ([b"Transfer-Encoding: xchunked"], chunked),
        ([b"Transfer-Encoding: chunked"], b"ffffffffffffffffff\r\n" + body), ([b"Transfer-Encoding: chunked"], b"-5\r\n" + body),
        ([b"Content-Encoding: gzip", b"Content-Length: %d" % len(zipped)], zipped), ([b"Content-Encoding: br", length], body),
        ([b"Content-Digest: " + content_digest(b"").encode(), length], body),
    ):  # fmt: skip
        request = head(b"POST", b"/api/v1/batches", b"127.0.0.1", kind, *lines) + content
        assert [status for status in answers(server, request) if not 400 <= status < 500] == [], lines
    assert server.http.get(f"/runs/{agent.run}").status_code == 404
    digest = b"Content-Digest: md5=:x:, " + content_digest(body).encode()
    for lines, content in (
        ([b"Transfer-Encoding: chunked"], chunked),
        ([digest, length], body),
        ([b"Expect: 100-continue", length], body),
    ):
        assert 200 in answers(server, head(b"POST", b"/api/v1/batches", b"127.0.0.1", kind, *lines) + content), lines
    assert server.get(f"/runs/{agent.run}/series", names="step")["rows"] == 2, "three times the same batch"


def test_head_is_answered_as_get_without_a_body(stored: tuple[RunningServer, str]) -> None:  # noqa: F811
    server = stored[0]
    for path in ("/api/v1/health", "/api/v1/runs", "/metrics", "/", "/favicon.ico"):
        found = [httpx.request(method, server.url + path, trust_env=False) for method in ("HEAD", "GET")]
        assert [one.status_code for one in found] == [200, 200] and found[0].content == b""
    assert server.http.head("/runs/none").status_code == 404

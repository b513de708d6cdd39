"""Bad input is refused with a problem that names the field, what was seen and what would be right; nothing is stored."""

# ruff: noqa: E501

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import RunningServer
from waiting import eventually
from wire_maker import SECOND, Agent, column

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import oom_record, profile, window
from vramscope.protocol.msgpack_limits import BadMessagePack, check_size
from vramscope_server.http_limits import MAX_HEAD_BYTES
from vramscope_server.store import run_queries
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.validation import prepare

pack = msgspec.msgpack.encode


def as_map(agent: Agent, *messages: wire_messages.Message) -> dict[str, Any]:
    """A batch as plain maps, to be spoiled."""
    spoiled: dict[str, Any] = msgspec.msgpack.decode(agent.body(*messages, sequence=1))
    return spoiled


def spoil(change: Callable[[dict[str, Any]], object]) -> bytes:
    agent = Agent()
    batch = as_map(agent, agent.samples(4))
    change(batch)
    return pack(batch)


def attached(batch: dict[str, Any]) -> dict[str, Any]:
    return batch["messages"][0]  # type: ignore[no-any-return]


def block(batch: dict[str, Any]) -> dict[str, Any]:
    return batch["messages"][1]  # type: ignore[no-any-return]


def set_column(name: str, values: list[int]) -> Callable[[dict[str, Any]], object]:
    return lambda batch: block(batch)["columns"].__setitem__(name, column(values))


def deep(levels: int) -> bytes:
    return b"\x91" * levels + b"\xc0"


def with_later_field(value: bytes) -> bytes:
    """A batch with a field that this version does not know."""
    body = spoil(lambda batch: batch.update(later="PLACEHOLDER"))
    return body.replace(pack("PLACEHOLDER"), value)


NOW = time.time_ns()
YEAR = 365 * 86_400 * SECOND

CASES: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "body"),
    "not MessagePack": (b"\xc1\xc1", 400, "body"),
    "JSON": (b'{"wire": 1}', 400, "body"),
    "cut short": (spoil(lambda b: None)[:-40], 400, "body"),
    "something after it": (spoil(lambda b: None) + b"\x00", 400, "body"),
    "a list": (pack([1, 2]), 422, "body"),
    "a number": (pack(5), 422, "body"),
    "nested a million deep": (deep(900_000), 422, "body"),
    "nested 1,500 deep in an unknown field": (with_later_field(deep(1500)), 422, "body"),
    "no wire": (spoil(lambda b: b.pop("wire")), 422, "wire"),
    "no sequence": (spoil(lambda b: b.pop("sequence")), 422, "sequence"),
    "sequence 0": (spoil(lambda b: b.update(sequence=0)), 422, "sequence"),
    "negative rank": (spoil(lambda b: b.update(rank=-1)), 422, "rank"),
    "rank is text": (spoil(lambda b: b.update(rank="0")), 422, "rank"),
    "rank is NaN": (spoil(lambda b: b.update(rank=float("nan"))), 422, "rank"),
    "two ranks": (spoil(lambda b: attached(b).update(rank=3)), 422, "messages[0].rank"),
    "run is a path": (spoil(lambda b: b.update(run="../../etc/passwd")), 422, "run"),
    "session is short": (spoil(lambda b: b.update(session="a")), 422, "session"),
    "sent before 1970": (spoil(lambda b: b.update(sent_ns=-1)), 422, "sent_ns"),
    "sent in 2300": (spoil(lambda b: b.update(sent_ns=NOW + 300 * YEAR)), 422, "sent_ns"),
    "start in 2120": (spoil(lambda b: attached(b).update(start_ns=150 * YEAR)), 422, "messages[0].start_ns"),
    "name is a number": (spoil(lambda b: attached(b).update(name=5)), 422, "messages[0].name"),
    "name is empty": (spoil(lambda b: attached(b).update(name="")), 422, "messages[0].name"),
    "name is huge": (spoil(lambda b: attached(b).update(name="x" * 201)), 422, "messages[0].name"),
    "config is nested": (spoil(lambda b: attached(b).update(config={"a": {"b": 1}})), 422, "messages[0].config"),
    "config is huge": (spoil(lambda b: attached(b).update(config={f"k{i}": i for i in range(1025)})), 422, "messages[0].config"),
    "devices twice": (spoil(lambda b: attached(b).update(devices=attached(b)["devices"] * 2)), 422, "messages[0].devices"),
    "no name of a message": (spoil(lambda b: block(b).update(type="<script>")), 422, "messages[1].type"),
    "no name of a stream": (spoil(lambda b: block(b).update(stream="<script>")), 422, "messages[1].stream"),
    "no name of a series": (spoil(set_column("bytes of doom", [1] * 4)), 422, "messages[1].columns"),
    "too many series": (spoil(lambda b: block(b)["columns"].update({f"s{i}": column([1] * 4) for i in range(256)})), 422, "messages[1].columns"),
    "no message": (spoil(lambda b: b["messages"].append([1])), 422, "messages[2]"),
    "an unknown type of message": (spoil(lambda b: b["messages"].append({"type": "spectrum"})), 422, "messages[2].type"),
    "an unknown series": (spoil(set_column("tensor_count", [1] * 4)), 422, "messages[1].columns"),
    "no time_ns": (spoil(lambda b: block(b)["columns"].pop("time_ns")), 422, "messages[1].columns"),
    "no step": (spoil(lambda b: block(b)["columns"].pop("step")), 422, "messages[1].columns"),
    "no rows": (spoil(lambda b: block(b).update(rows=0)), 422, "messages[1].rows"),
    "more rows than bytes": (spoil(lambda b: block(b).update(rows=5)), 422, "messages[1].columns.time_ns"),
    "odd bytes": (spoil(lambda b: block(b)["columns"].update(step=b"1234567")), 422, "messages[1].columns.step"),
    "columns are lists": (spoil(lambda b: block(b)["columns"].update(step=[1, 2, 3, 4])), 422, "messages[1].columns"),
    "negative bytes": (spoil(set_column("allocated_bytes", [1, -2, 3, 4])), 422, "messages[1].columns.allocated_bytes"),
    "the smallest number there is": (spoil(set_column("allocated_bytes", [-(1 << 63), 1, 2, 3])), 422, "messages[1].columns.allocated_bytes"),
    "absurdly many bytes": (spoil(set_column("reserved_bytes", [1, 2, 3, (1 << 62) + 1])), 422, "messages[1].columns.reserved_bytes"),
    "NaN as a column": (spoil(lambda b: block(b)["columns"].update(allocated_bytes=struct.pack("<4d", *[float("nan")] * 3, -1.0))), 422, "messages[1].columns.allocated_bytes"),
    "no phase of anybody's": (spoil(set_column("phase", [0, 1, 64, 2])), 422, "messages[1].columns.phase"),
    "time in 2120": (spoil(set_column("time_ns", [NOW, NOW, NOW, 150 * YEAR])), 422, "messages[1].columns.time_ns"),
    "time unknown": (spoil(set_column("time_ns", [-1] * 4)), 422, "messages[1].columns.time_ns"),
    "event in 2120": (spoil(lambda b: b["messages"].append({"type": "event", "time_ns": 150 * YEAR, "kind": "notice"})), 422, "messages[2].time_ns"),
    "event of a strange kind": (spoil(lambda b: b["messages"].append({"type": "event", "time_ns": NOW, "kind": "<script>"})), 422, "messages[2].kind"),
    "ended and runs": (spoil(lambda b: b["messages"].append({"type": "ended", "time_ns": NOW, "state": "running"})), 422, "messages[2].state"),
    "ended in no state": (spoil(lambda b: b["messages"].append({"type": "ended", "time_ns": NOW, "state": "<script>"})), 422, "messages[2].state"),
    "too many messages": (spoil(lambda b: b.update(messages=[{"type": "event", "time_ns": NOW, "kind": "n"}] * 4097)), 422, "body"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_batches_are_refused_with_the_field_and_nothing_is_stored(server: RunningServer, case: str) -> None:
    body, status, field = CASES[case]
    before = server.get("/runs", limit=1)["total"]
    answer = server.post(body)
    problem = answer.json()
    assert answer.status_code == status, problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["field"].startswith(field), problem
    assert problem["type"].startswith("urn:vramscope:problem:")
    assert {"title", "status", "detail", "seen", "expected"} <= problem.keys()
    assert len(answer.content) < 3000, "a refusal does not echo the input at length"
    assert server.get("/runs", limit=1)["total"] == before


@pytest.mark.parametrize("version", [0, 2, 99, "one", None, True, 1.0, -1])
def test_another_wire_version_is_told_both_versions_whatever_the_rest_looks_like(
    server: RunningServer, version: Any
) -> None:
    answer = server.post(pack({"wire": version, "shape": {"of": ["the", "future"]}}))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:vramscope:problem:wire-version")
    assert problem["seen"] == version
    assert problem["expected"] == str(wire_messages.WIRE_VERSION)
    assert str(version) in problem["detail"] and str(wire_messages.WIRE_VERSION) in problem["detail"]


def test_more_than_8_mib_is_refused_without_being_read(server: RunningServer) -> None:
    answer = server.post(bytes(wire_messages.MAX_BATCH_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["expected"] == f"at most {wire_messages.MAX_BATCH_BYTES} bytes"


def test_more_than_8_mib_without_saying_so_is_refused_too(server: RunningServer) -> None:
    def endless() -> Any:
        for _ in range(20):
            yield bytes(1 << 20)

    try:
        answer = httpx.post(
            f"{server.url}/api/v1/batches", content=endless(), headers={"Content-Type": wire_messages.CONTENT_TYPE}
        )
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # the server hung up in the middle, as it may
    else:
        assert answer.status_code == 413
    assert server.get("/health") == {"status": "ok"}


HEAD = b"POST /api/v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ENDLESS = {
    "a header": (HEAD + b"X: ", b"x" * 1000),
    "headers": (HEAD, b"X: y\r\n" * 100),
    "an address": (b"GET /", b"x" * 1000),
    "trailers": (
        HEAD + b"Content-Type: application/msgpack\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X: y\r\n" * 100,
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_head_without_end_is_refused_before_it_fills_the_memory(server: RunningServer, kind: str) -> None:
    """It comes before any token: one connection of them once took a gigabyte, and everybody else's time."""
    begin, piece = ENDLESS[kind]
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(begin)
        with contextlib.suppress(ConnectionError):  # (the server has hung up)
            for _ in range(16 * MAX_HEAD_BYTES // len(piece)):
                connection.sendall(piece)
            while connection.recv(65536):
                pass
    assert server.get("/health") == {"status": "ok"}


def test_a_head_of_some_size_is_none_without_end(server: RunningServer) -> None:
    for size in (1000, 32_000):
        assert server.http.get("/health", headers={"X": "x" * size}).status_code == 200


@pytest.mark.parametrize("framing", [b"Content-Length: 5000\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"])
def test_a_training_that_is_killed_while_it_sends_is_no_fault_of_the_server(
    start_server: Callable[..., RunningServer], framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(HEAD + b"Content-Type: application/msgpack\r\n" + framing)
        eventually(lambda: server.services.intake.bytes > 0)
    eventually(lambda: server.services.intake.bytes == 0)
    assert server.get("/health") == {"status": "ok"}
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("vramscope_server")]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data", ""])
def test_another_content_type_is_refused(server: RunningServer, kind: str) -> None:
    """A form on a foreign page cannot send ours."""
    answer = server.http.post("/batches", content=spoil(lambda b: None), headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type")


def test_a_million_series_names_cost_no_memory() -> None:
    """Eight megabytes of tiny names would be 200 MB as objects."""
    names = b"".join(b"\xa5" + f"{i:05d}".encode() + b"\xc0" for i in range(99_999)) * 10
    body = b"\xdf" + struct.pack(">I", 999_990) + names
    assert len(body) < wire_messages.MAX_BATCH_BYTES
    nested = b"\xdc\x0f\xff" + (b"\xdc\x0f\xff" + b"\xc0" * 4095) * 2000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5):
        with pytest.raises(BadBatch, match="at most 4096"):
            prepare(body, NOW)
    with pytest.raises(BadBatch, match="1000000"):
        prepare(nested, NOW)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000, "KiB"


BOMBS: dict[str, Callable[[], bytes]] = {
    "many": lambda: b"\xdd" + struct.pack(">I", 32 << 20) + b"\x90" * (32 << 20),
    "many in lists": lambda: b"\x98" + (b"\xdd" + struct.pack(">I", 1 << 20) + b"\x90" * (1 << 20)) * 8,
    "deep": lambda: deep(1_000_000),
}
"""Empty lists, which are larger than anything else of one byte."""


@pytest.mark.parametrize("unpack", [window.unpack, oom_record.unpack, profile.unpack])
@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_artifact_that_is_large_when_unpacked_costs_little(
    unpack: Callable[[bytes], object], kind: str
) -> None:
    """36 kB of empty lists took 3.2 GB, and minutes."""
    data = zlib.compress(b"\x81" + pack("stacks") + BOMBS[kind](), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"values|items|array|nested too deeply"):
        unpack(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "KiB"


def test_a_name_of_any_length_is_only_unknown(server: RunningServer) -> None:
    for path in ("/runs/", "/figures/memory?run=", "/compare?runs="):
        answer = server.http.get(f"{path}{'x' * 60_000}")
        assert answer.status_code in (404, 422), answer.text
        assert len(answer.content) < 2000


def test_the_live_feed_looks_for_no_similar_names(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queries.difflib, "get_close_matches", lambda *_, **__: pytest.fail("8 ms for each"))
    server.get("/live/delta", runs=",".join(f"unknown{number}" for number in range(50)), after=1)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_refused_or_taken_but_never_a_fault(body: bytes) -> None:
    with pytest.raises(BadBatch):
        prepare(body, NOW)


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_batch_with_one_byte_changed_is_never_a_fault(position: int, byte: int) -> None:
    body = bytearray(GOOD)
    body[position % len(body)] = byte
    try:
        prepare(bytes(body), NOW)
    except BadBatch as bad:
        assert bad.field and bad.expected


GOOD = spoil(lambda b: None)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(plain)
@settings(max_examples=200, deadline=None)
def test_the_size_of_whatever_msgpack_writes_is_known(value: Any) -> None:
    body = pack(value)
    check_size(body, most_items=1000, most_values=1000)
    for cut in {1, len(body) // 2}:
        if cut < len(body):
            with pytest.raises(BadMessagePack):
                check_size(body[:cut], most_items=1000, most_values=1000)


def test_a_clock_that_is_off_is_shifted_when_shown_and_never_in_the_data(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server()
    ahead = 5 * 3600 * SECOND
    agent = Agent(start_ns=time.time_ns() + ahead)
    server.send(agent, agent.samples(3), sent_ns=time.time_ns() + ahead)
    run = server.get(f"/runs/{agent.run}")
    assert run["ranks"][0]["clock_skew_seconds"] == pytest.approx(5 * 3600, abs=1)
    assert run["started_seconds"] == pytest.approx(time.time(), abs=5)
    assert run["window"]["first_seconds"] == pytest.approx(time.time(), abs=5)
    shown = server.get(f"/runs/{agent.run}/series", names="step")
    assert shown["x_values"][0] == pytest.approx(time.time(), abs=5)
    window = server.get(f"/runs/{agent.run}/series", names="step", **{"from": 0, "to": 0.15})
    assert window["series"]["step"]["value"] == [0, 1], "windows are asked for as they are shown"
    from vramscope_server.store.run_queries import find_run
    from vramscope_server.store.series_reader import RankDevice, load_columns

    with server.services.database.reader() as connection:
        stored = load_columns(connection, find_run(connection, agent.run), RankDevice(0, 0, 0), "samples", [])
    assert stored.columns["time_ns"][0] == agent.start_ns, "stored as it was sent"


@pytest.mark.parametrize(
    ("began_ns", "corrected"),
    [(0, False), (7 * SECOND, True), (NOW + 20 * YEAR, False), (NOW + 20 * YEAR, True), (NOW - 20 * YEAR, True)],
    ids=["in 1970", "in 1970, corrected", "20 years ahead", "20 years ahead, corrected", "20 years behind, corrected"],
)
def test_no_row_is_lost_whatever_the_clock_of_a_training_shows(
    server: RunningServer, began_ns: int, corrected: bool
) -> None:
    """It may start in 1970, as on a board without a battery, and be corrected while rows wait whose times are from before."""
    agent = Agent(start_ns=began_ns)
    for batch in range(2):
        showed = time.time_ns() if corrected and batch else began_ns + batch * 1_100_000_000
        happened = began_ns if batch == 0 else showed
        event = wire_messages.Event(time_ns=happened, kind="notice", step=1, data={"text": "x"})
        time.sleep(1.1 * batch)  # a clock that is behind is recognized by two batches a second apart
        rows = agent.samples(3, at=2.0 * batch, step=[3 * batch, 3 * batch + 1, 3 * batch + 2])
        server.send(agent, rows, agent.steps(3, at=2.0 * batch), event, sent_ns=showed)
    server.send(agent, agent.ended(at=4.0), sent_ns=began_ns + 4 * SECOND)
    run = server.get(f"/runs/{agent.run}")
    assert (run["state"], len(run["events"])) == ("finished", 2)
    if run["ranks"][0]["clock_skew_seconds"] is not None:
        assert run["started_seconds"] == pytest.approx(time.time(), abs=20), "shown by the server's clock"
    shown = server.get(f"/runs/{agent.run}/series", names="step")
    assert sum(value is not None for value in shown["series"]["step"]["value"]) == 6
    assert agent.run in {row["run_id"] for row in server.get("/runs", limit=1000)["runs"]}
    for page in ("leaks", "figures/stack", "figures/phases", "steps"):
        server.get(f"/runs/{agent.run}/{page}")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/runs/RUN/series?names=nonsense", "names"),
        ("/runs/RUN/series?names=", "names"),
        ("/runs/RUN/series", "names"),
        ("/runs/RUN/series?names=step&points=5", "points"),
        ("/runs/RUN/series?names=step&points=4001", "points"),
        ("/runs/RUN/series?names=step&x=mood", "x"),
        ("/runs/RUN/series?names=step&from=nan", "from"),
        ("/runs/RUN/series?names=step&from=5&to=1", "to"),
        ("/runs/RUN/series?names=step&stream=gossip", "stream"),
        ("/runs?limit=0", "limit"),
        ("/runs?cursor=nonsense", "cursor"),
        ("/runs?cursor=e30=", "cursor"),
        ("/runs?state=exploded", "state"),
        ("/compare?runs=", "runs"),
        ("/compare", "runs"),
        ("/runs/RUN/steps?from=x", "from"),
        ("/runs/RUN/leaks?from=5&to=1", "to"),
        ("/runs/RUN/leaks?rank=-1", "rank"),
    ],
)
def test_a_bad_parameter_is_named(server: RunningServer, path: str, field: str) -> None:
    agent = Agent()
    server.send(agent, agent.samples(2))
    answer = server.http.get(path.replace("RUN", agent.run))
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (422, field), problem
    assert {"seen", "expected", "detail"} <= problem.keys()


@pytest.mark.parametrize(
    "path",
    ["/runs/nobody", "/runs/nobody/series?names=step", "/runs/nobody/figures/stack", "/runs/nobody/steps", "/runs/nobody/leaks", "/runs/RUN/leaks?rank=5", "/compare?runs=nobody",
     "/runs/RUN/figures/nonsense", "/compare/figures/nonsense?runs=RUN", "/runs/RUN/series?names=step&rank=5",
     "/runs/RUN/series?names=step&device=3", "/nonsense", "/runs/RUN/nonsense"],
)  # fmt: skip
def test_what_does_not_exist_is_a_problem_with_suggestions(server: RunningServer, path: str) -> None:
    agent = Agent()
    server.send(agent, agent.samples(2))
    answer = server.http.get(path.replace("RUN", agent.run))
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "suggestions" in answer.json()


@pytest.mark.parametrize("first", [-1e300, 1e300, -5, 1e18, 0])
def test_absurd_windows_are_empty_or_whole_but_never_a_fault(server: RunningServer, first: float) -> None:
    agent = Agent()
    server.send(agent, agent.samples(3))
    for x in ("time", "step"):
        for name in ("from", "to"):
            assert "x_values" in server.get(f"/runs/{agent.run}/series", names="step", x=x, **{name: first})
            assert "figure" in server.get(f"/runs/{agent.run}/figures/stack", x=x, **{name: first})


def test_steps_beyond_all_numbers_bound_nothing(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3))
    assert len(server.get(f"/runs/{agent.run}/steps", **{"from": -(10**25), "to": 10**25})) == 3
    assert server.get(f"/runs/{agent.run}/steps", **{"from": 10**25}) == []


@pytest.mark.parametrize(("method", "path"), [("POST", "/session"), ("POST", "/tokens"), ("PATCH", "/runs/RUN")])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_would_fill_the_memory_is_refused(
    server: RunningServer, method: str, path: str, announced: bool
) -> None:
    """Anybody may try to sign in: what is read before that has a bound."""
    agent = Agent()
    server.send(agent, agent.samples(2))
    text = b'{"token": "' + b"a" * (1 << 20) + b'"}'
    answer = server.http.request(
        method,
        path.replace("RUN", agent.run),
        content=text if announced else iter([text[:1000], text[1000:]]),
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["field"]) == (413, "body")
    assert answer.json()["expected"] == f"at most {1 << 20} bytes"


@pytest.mark.parametrize("given", [{"name": "x" * 500_000}, {"x" * 500_000: 1}], ids=["a value", "a name"])
def test_what_was_wrong_is_not_sent_back_at_length(server: RunningServer, given: dict[str, Any]) -> None:
    agent = Agent()
    server.send(agent, agent.samples(2))
    answer = server.http.patch(f"/runs/{agent.run}", json=given)
    assert answer.status_code == 422 and answer.json()["field"]
    assert len(answer.content) < 1000


def test_half_a_character_is_refused_and_told(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(2))
    kind = {"Content-Type": "application/json"}
    answer = server.http.patch(f"/runs/{agent.run}", content=b'{"name": "a\\ud800"}', headers=kind)
    assert (answer.status_code, answer.json()["field"], answer.json()["seen"]) == (422, "name", "a?")


def test_an_origin_that_is_no_address_is_a_foreign_one(server: RunningServer) -> None:
    assert server.http.delete("/session", headers={"Origin": "http://[::1"}).status_code == 403


def odd(agent: Agent) -> list[bytes]:
    """Batches of which a database may hold a grudge, though each says what it means."""
    first = as_map(agent, agent.samples(4))
    attached(first).update(config={"clip": float("inf"), "seen": float("nan"), "nul": "a\0b"}, git_commit="a\0b")
    event = {"type": "event", "time_ns": NOW, "kind": "notice", "data": {"loss": float("-inf")}}
    ended = {"type": "ended", "time_ns": NOW, "state": "failed", "error_type": "X", "error_line": "\0binary\0"}
    last = {**first, "sequence": 2, "messages": [ended]}
    return [pack(first | {"messages": [*first["messages"], event]}), pack(last)]


def test_what_no_json_and_no_text_can_tell_is_stored_in_words(
    start_server: Callable[..., RunningServer], database_url: str
) -> None:
    """Infinity in a configuration, a NUL in an error: a batch that is never taken would stop all that come after it."""
    server = start_server(database=database_url)
    agent = Agent()
    for body in odd(agent):
        assert server.post(body).status_code == 200
    run = server.get(f"/runs/{agent.run}")
    assert {name: run["config"][name] for name in ("clip", "seen")} == {"clip": "inf", "seen": "nan"}
    assert (run["state"], run["error_line"].replace("\0", "\ufffd")) == ("failed", "\ufffdbinary\ufffd")
    assert server.http.get("/runs/%00").status_code == 404


@pytest.mark.parametrize("name", ["seconds_per_step", "noise_fraction", "hook_seconds"])
def test_an_overhead_that_is_no_number_is_refused(server: RunningServer, name: str) -> None:
    fields = {"type": "overhead", "resolvable": True, "watched_steps": 1, "unwatched_steps": 1, "hook_seconds": 0.1,
            "seconds_per_step": None, "fraction": None, "noise_fraction": None, "sampler_cpu_seconds": 0.1}  # fmt: skip
    answer = server.post(spoil(lambda batch: batch["messages"].append({**fields, name: float("nan")})))
    assert (answer.status_code, answer.json()["field"]) == (422, f"messages[2].{name}")

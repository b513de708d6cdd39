"""Mutated input from valid seeds: every answer is 2xx or 4xx, and neither memory nor time grows without bound.

What a server accepted is read afterwards by every route that shows it: a batch may be valid and odd.
"""

from __future__ import annotations

import dataclasses
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import figures
import httpx
import msgspec
import pytest
import seeds
from area_api import FIGURES, questions
from mutation import Mutation
from running import RunningServer
from stored_runs import PLAIN, started
from wire_maker import Agent, new_id

from vramscope.protocol import messages
from vramscope_server.analysis.snapshot_format.reader import BadSnapshot, read

LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
MOST_CPU_SECONDS = 6.0
"""CPU time of one request, of this process with server and test: machine code is compiled in some of them."""
MOST_GROWTH_KIB = 300_000
OF_A_RUN = (
    "", "/leaks", "/next-change", "/peak", "/oom", "/recordings", "/profiles", "/steps", "/steps?limit=3",
    "/series?names=allocated_bytes,reserved_bytes", "/series?names=allocated_bytes&x=step&points=10",
    "/series?stream=scalars&names=loss", *(f"/figures/{name}" for name in FIGURES),
    *(f"/figures/{name}?x=step" for name in FIGURES),
)  # fmt: skip
OF_AN_ARTIFACT = {
    "window": (
        "", "/data", "/moments", "/strip", "/map", "/sizes", "/timeline", "/allocations", "/flame", "/anatomy", "/block?offset=0",
        "/life?allocation=1", "/between?a=0&b=20", "/at?event=5&bytes=1000", "/events?limit=5", "/export?format=csv",
        "/timeline?by=site&points=50", "/map?event=10&lines=8&columns=16", "/export?format=perfetto",
    ),
    "profile": (
        "", "/figures/operations", "/figures/modules", "/figures/memory", "/tables/operations", "/tables/modules",
        "/tables/lines?sort=name",
    ),
    "oom": ("", "/figure", "/loss", "/map", "/export", "/block?offset=1000"),
}  # fmt: skip
PLACE = {"window": "/recordings", "profile": "/profiles", "oom": "/oom"}


@dataclasses.dataclass
class Attack:
    """Asks a server and judges each answer."""

    server: RunningServer
    statuses: Counter[int] = dataclasses.field(default_factory=Counter)
    slowest_seconds: float = 0.0

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        began = time.process_time()
        answer = self.server.http.request(method, path, **options)
        self.slowest_seconds = max(self.slowest_seconds, time.process_time() - began)
        self.statuses[answer.status_code] += 1
        assert 200 <= answer.status_code < 300 or 400 <= answer.status_code < 500, (method, path, answer.text[:500])
        return answer

    def post(self, tree: Any) -> httpx.Response:
        return self.post_bytes(msgspec.msgpack.encode(tree))

    def post_bytes(self, body: bytes) -> httpx.Response:
        return self.ask("POST", "/batches", content=body, headers={"Content-Type": messages.CONTENT_TYPE})

    def end(self, attack: str, before_kib: int) -> None:
        """The server is well, and the limits were kept."""
        assert self.server.get("/health") == {"status": "ok"}
        assert self.slowest_seconds < MOST_CPU_SECONDS
        growth = memory_kib() - before_kib
        assert growth < MOST_GROWTH_KIB, f"{growth} KiB more memory"
        accepted = sum(count for status, count in self.statuses.items() if status < 300)
        refused = sum(count for status, count in self.statuses.items() if status >= 400)
        figures.keep(attack, answers_2xx=accepted, answers_4xx=refused, answers_5xx=0, MiB_more_memory=growth // 1024)


def memory_kib() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server with runs, recordings, a profile, errors and a snapshot; and the id of that."""
    server, snapshot = started(tmp_path_factory.mktemp("stored"))
    yield server, snapshot
    server.stop()


def send_artifact(attack: Attack, kind: str, data: bytes) -> str:
    """Bytes as an artifact of a new run."""
    agent, ident, size = Agent(), new_id("a"), messages.MAX_PIECE_BYTES
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    for number, part in enumerate(parts):
        piece = messages.Piece(
            artifact=ident,
            kind=kind,
            number=number,
            pieces=len(parts),
            about={"device": 0, "time_ns": agent.start_ns},
            data=part,
        )
        assert attack.post_bytes(agent.body(agent.samples(2, at=number), piece)).status_code == 200
    return ident


def test_the_seeds_are_accepted(stored: tuple[RunningServer, str]) -> None:
    attack = Attack(stored[0])
    types = set()
    agent = Agent()
    for tree in seeds.batches(agent):
        types |= {message["type"] for message in tree["messages"]} | ({"scalars"} if tree["scalars"] else set())
        answer = attack.post(tree)
        assert answer.status_code == 200, answer.text
    assert types == {"attached", "block", "event", "scan", "techniques", "piece", "overhead", "ended", "scalars"}
    for path in OF_A_RUN:
        assert attack.ask("GET", f"/runs/{agent.run}{path}").status_code == 200, path
    for kind, trees in seeds.artifacts().items():
        for tree in trees:
            ident = send_artifact(attack, kind, seeds.packed(tree))
            for path in OF_AN_ARTIFACT[kind]:
                answer = attack.ask("GET", f"{PLACE[kind]}/{ident}{path}")
                # (A record without a map, or a profile without device times, lacks some parts.)
                assert answer.status_code in (200, 202) or (kind != "window" and answer.status_code == 404), (
                    path,
                    answer.text,
                )
    for tree in seeds.snapshots():
        for protocol in range(6):
            assert read(seeds.pickled(tree, protocol)).devices


@pytest.mark.parametrize("count", [250, pytest.param(6_000, marks=LONG)])
def test_mutated_messages(stored: tuple[RunningServer, str], choice: random.Random, count: int) -> None:
    attack, mutation, before = Attack(stored[0]), Mutation(choice), memory_kib()
    for _ in range(count):
        agent = Agent()
        trees = seeds.batches(agent)
        at = choice.randrange(len(trees))
        for number, tree in enumerate(trees):
            if number < at:
                attack.post(tree)
        if choice.random() < 0.7:
            answer = attack.post(mutation.tree(trees[at]))
        else:
            answer = attack.post_bytes(mutation.bytes(msgspec.msgpack.encode(trees[at])))
        if answer.status_code == 200:
            for path in choice.sample(OF_A_RUN, 2):
                attack.ask("GET", f"/runs/{agent.run}{path}")
    attack.ask("GET", "/runs?limit=100")
    attack.end("mutated messages, and what shows them", before)


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=LONG)])
def test_mutated_artifacts(stored: tuple[RunningServer, str], choice: random.Random, count: int) -> None:
    attack, mutation, before = Attack(stored[0]), Mutation(choice), memory_kib()
    valid = seeds.artifacts()
    for _ in range(count):
        kind = choice.choice(list(valid))
        tree = choice.choice(valid[kind])
        data = seeds.packed(mutation.tree(tree)) if choice.random() < 0.9 else mutation.bytes(seeds.packed(tree))
        ident = send_artifact(attack, kind, data)
        for path in choice.sample(OF_AN_ARTIFACT[kind], 3):
            attack.ask("GET", f"{PLACE[kind]}/{ident}{path}")
    attack.end("mutated recordings, profiles and out-of-memory records", before)


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_record_with_a_ratio_that_cannot_be_is_refused(stored: tuple[RunningServer, str], ratio: float) -> None:
    """Found by mutation: the page of such a record was an internal error."""
    attack = Attack(stored[0])
    tree = seeds.artifacts()["oom"][0] | {"state_bytes_per_parameter_byte": ratio}
    ident = send_artifact(attack, "oom", seeds.packed(tree))
    assert attack.ask("GET", f"/oom/{ident}").status_code == 422


@pytest.mark.parametrize("table", ["operations", "modules", "lines"])
def test_a_history_of_rows_that_its_table_has_not_is_refused(stored: tuple[RunningServer, str], table: str) -> None:
    """Found by mutation: the figure of such a profile was an internal error."""
    attack = Attack(stored[0])
    tree = seeds.artifacts()["profile"][0]
    tree["history"][table] = (1 << 40).to_bytes(8, "little") + tree["history"][table][8:]
    ident = send_artifact(attack, "profile", seeds.packed(tree))
    assert attack.ask("GET", f"/profiles/{ident}/figures/memory").status_code == 422


@pytest.mark.parametrize("count", [400, pytest.param(50_000, marks=LONG)])
def test_mutated_snapshots(choice: random.Random, count: int) -> None:
    """The reader alone: a server runs it in a process of its own."""
    mutation, before, refused = Mutation(choice), memory_kib(), 0
    valid = seeds.snapshots()
    slowest = 0.0
    for _ in range(count):
        tree, protocol = choice.choice(valid), choice.randrange(6)
        if choice.random() < 0.5:
            data = seeds.pickled(mutation.tree(tree), protocol)
        else:
            data = mutation.bytes(seeds.pickled(tree, protocol))
        began = time.process_time()
        try:
            read(data)
        except BadSnapshot:
            refused += 1
        slowest = max(slowest, time.process_time() - began)
    assert slowest < MOST_CPU_SECONDS
    growth = memory_kib() - before
    assert growth < MOST_GROWTH_KIB, f"{growth} KiB more memory"
    figures.keep(
        "mutated snapshot files", read=count - refused, refused=refused, other_errors=0, MiB_more_memory=growth // 1024
    )


@pytest.mark.parametrize("count", [300, pytest.param(6_000, marks=LONG)])
def test_mutated_addresses(stored: tuple[RunningServer, str], choice: random.Random, count: int) -> None:
    server, snapshot = stored
    attack, mutation, before = Attack(server), Mutation(choice), memory_kib()
    leaks = [one["id"] for one in server.get(f"/runs/{PLAIN}/leaks")["leaks"]]
    valid = [(path, parameters) for _, path, parameters in questions(leaks, snapshot)]
    for _ in range(count):
        path, parameters = choice.choice(valid)
        attack.ask(
            "GET", mutation.address(path, {name: value for name, value in parameters.items() if name != "wait_seconds"})
        )
    attack.end("mutated addresses", before)

"""The anatomy over HTTP and on the command line: what a recording's memory is for, and what would make it less."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from running import RunningServer
from test_recordings_seen import send
from window_maker import Allocator, recorded, training

from vramscope.protocol.window import pack
from vramscope_server.analysis.ownership.categories import CATEGORIES


@pytest.fixture(scope="module")
def small(server: RunningServer) -> str:
    return send(server, pack(training()))


def test_categories_phases_and_modules_add_up_to_what_is_allocated(server: RunningServer, small: str) -> None:
    peak = server.get(f"/recordings/{small}/anatomy")
    timeline = server.get(f"/recordings/{small}/timeline")
    assert peak["allocated_bytes"] == timeline["peak"]["allocated_bytes"]
    assert peak["recording"] == small and str(peak["step"]) in peak["moment"]
    for event in (-1, 0, 57, None):
        answer = server.get(f"/recordings/{small}/anatomy", event=event) if event is not None else peak
        for part in ("categories", "phases", "modules"):
            assert sum(row["bytes"] for row in answer[part]) == answer["allocated_bytes"]
        named = {row["category"]: row["bytes"] for row in answer["categories"]}
        assert set(named) <= set(CATEGORIES)
        assert named.get("unknown", 0) == answer["coverage"]["unknown_bytes"]
        assert answer["advice"] == peak["advice"], "advice is about the peak"


def test_a_window_of_an_older_agent_says_that_owners_are_not_known(server: RunningServer, small: str) -> None:
    assert server.get(f"/recordings/{small}/anatomy")["coverage"]["basis"] == "phases"


def test_an_allocation_has_the_name_that_the_program_had_for_it(server: RunningServer) -> None:
    window = training(2, 2)
    address = int.from_bytes(window.end.blocks["address"][:8], "little")
    events = len(window.events["action"]) // 8
    column = {"event": events, "address": address, "category": 1, "name": 0}
    owners = {name: value.to_bytes(8, "little") for name, value in column.items()}
    named = msgspec.structs.replace(window, owners=owners, owner_names=["gradient of <b>h.0</b>"])
    ident = send(server, pack(named))
    answer = server.get(f"/recordings/{ident}/anatomy", event=events - 1)
    assert answer["coverage"]["basis"] == "owners"
    assert any(row["category"] == "gradients" for row in answer["categories"])
    names = {server.get(f"/recordings/{ident}/life", allocation=row)["owner"] for row in range(8)}
    assert "gradient of <b>h.0</b>" in names and None in names


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("event", 1 << 40, "owners.event"), ("category", 77, "owners.category"), ("name", 3, "owners.name")],
)
def test_owners_that_cannot_be_are_told_by_their_column(
    server: RunningServer, name: str, value: int, words: str
) -> None:
    window = training(1, 1)
    columns = {"event": 0, "address": 0, "category": 0, "name": 0} | {name: value}
    owners = {key: number.to_bytes(8, "little") for key, number in columns.items()}
    ident = send(server, pack(msgspec.structs.replace(window, owners=owners, owner_names=["one"])))
    answer = httpx.get(f"{server.url}/api/v1/recordings/{ident}/anatomy", trust_env=False)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]


def test_moments_that_are_not_there_and_recordings_that_are_empty(server: RunningServer, small: str) -> None:
    answer = httpx.get(f"{server.url}/api/v1/recordings/{small}/anatomy", params={"event": 10**9}, trust_env=False)
    assert answer.status_code == 422 and answer.json()["field"] == "event"
    answer = httpx.get(f"{server.url}/api/v1/recordings/nobody/anatomy", trust_env=False)
    assert answer.status_code == 404
    empty = send(server, pack(recorded(None, Allocator())))
    response: dict[str, Any] = server.get(f"/recordings/{empty}/anatomy")
    assert (response["categories"], response["advice"], response["coverage"]["unknown_fraction"]) == ([], [], None)


def test_show_names_all_advice_and_the_moment_that_it_is_of(server: RunningServer, small: str) -> None:
    from vramscope_server.cli.client import source_of
    from vramscope_server.reports.run_facts import advice_of
    from vramscope_server.reports.source import newest_anatomy

    anatomy = server.get(f"/recordings/{small}/anatomy")
    sentences = [one["sentence"] for one in anatomy["advice"]]
    assert sentences
    fields = {
        "run_id": server.get(f"/recordings/{small}")["run_id"],
        "recordings": 1,
        "peak_allocated_bytes": anatomy["allocated_bytes"],
    }
    recorded = newest_anatomy(source_of(server.url), fields)
    assert advice_of(fields, recorded) == sentences
    higher = advice_of(fields | {"peak_allocated_bytes": 2 * anatomy["allocated_bytes"]}, recorded)
    assert higher[1:] == sentences
    assert anatomy["moment"] in higher[0] and "was not recorded" in higher[0]
    assert newest_anatomy(source_of(server.url), fields | {"recordings": 0}) is None and advice_of(fields, None) == []


def test_shares_of_a_peak_that_is_known_in_part_are_shares_of_the_whole() -> None:
    from rich.console import Console

    from vramscope_server.cli.show import _composition

    out = Console(width=120, record=True)
    parts = {"parameters": 64 << 20, "optimizer": 192 << 20, "gradients": None, "workspaces": None, "other": None}
    out.print(_composition(parts, 1 << 30, 120, 0))
    lines = [line.split() for line in out.export_text().splitlines()]
    assert lines[0][:5] == ["optimizer", "state", "192", "MiB", "18.8"]
    assert lines[1][:4] == ["parameters", "64.0", "MiB", "6.3"]
    assert lines[2][:8] == ["gradients,", "cuBLAS", "workspaces,", "other", "768", "MiB", "75.0", "%"]


def test_unknown_workspaces_are_part_of_other_and_no_row() -> None:
    from rich.console import Console

    from vramscope_server.cli.show import _composition

    out = Console(width=120, record=True)
    out.print(_composition({"parameters": 64 << 20, "workspaces": None, "other": 64 << 20}, 128 << 20, 120, 0))
    out.print(
        _composition({"parameters": 64 << 20, "workspaces": 32 << 20, "other": 32 << 20}, 128 << 20, 120, 16 << 20)
    )
    names = [line.split("  ")[0] for line in out.export_text().splitlines()]
    assert names == ["parameters", "other", "parameters", "cuBLAS workspaces", "other"]


def test_what_of_other_is_cublas_is_named_under_it_and_nowhere_else() -> None:
    from rich.console import Console

    from vramscope_server.cli.show import _composition, _workspaces

    def report_of(other: int | None, workspaces: int) -> list[str]:
        out = Console(width=120, record=True)
        out.print(_composition({"parameters": 64 << 20, "other": other}, 1 << 30, 120, workspaces))
        return out.export_text().splitlines()

    assert report_of(96 << 20, 64 << 20)[1].split()[:7] == [
        "including",
        "cuBLAS",
        "workspaces",
        "64.0",
        "MiB",
        "6.3",
        "%",
    ]
    for other, workspaces in ((32 << 20, 64 << 20), (None, 64 << 20), (96 << 20, 0)):
        assert not any("cuBLAS" in line for line in report_of(other, workspaces)), "not known, or of another moment"
    rows = [{"category": "workspaces", "bytes": 7}, {"category": "input", "bytes": 5}]
    assert (_workspaces({"categories": rows}), _workspaces(None)) == (7, 0)

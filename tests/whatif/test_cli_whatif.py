"""The command: on files and on runs, for people and for scripts, and what it says when it cannot."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from running import RunningServer
from window_maker import training
from wire_maker import Agent, new_id

from vramscope.protocol import messages, series
from vramscope.protocol.window import pack

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_json_has_the_keys_that_scripts_lean_on(recorded: dict[str, Any], cli: Cli) -> None:
    """The contract of docs/support.md: one object a configuration, the recorded settings first."""
    confs = ["expandable_segments:True", "max_split_size_mb:64"]
    code, out, err = cli("whatif", recorded["lengths"].path, *[w for conf in confs for w in ("--conf", conf)], "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert [row["conf"] for row in answer] == ["", *confs]
    stable = "conf peak_reserved_bytes peak_allocated_bytes out_of_memory replay_residual_bytes notes"
    more = "smallest_card_bytes uncertainty_bytes is_bounded retries device_allocs band saved_bytes certainty reasons"
    for row in answer:
        assert set(f"{stable} {more}".split()) <= row.keys()
        assert row["replay_residual_bytes"] == 0
        assert isinstance(row["notes"], list)
    assert answer[0]["peak_reserved_bytes"] == recorded["lengths"].counted["peak_reserved_bytes"]


def test_people_see_the_table_the_recommendation_and_the_line_to_copy(recorded: dict[str, Any], cli: Cli) -> None:
    code, out, _ = cli("whatif", recorded["lengths"].path, "--conf", "expandable_segments:True")
    assert code == 0
    assert "default settings (recorded)" in out
    assert 'export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"' in out
    assert "with equal addresses" in out
    assert "issues/130330" in out


def test_people_see_the_settings_ranked_by_the_smallest_card_and_scripts_as_they_asked(
    recorded: dict[str, Any], cli: Cli
) -> None:
    confs = ["max_split_size_mb:512", "expandable_segments:True", "max_split_size_mb:64"]
    words = ["whatif", recorded["lengths"].path, *[word for conf in confs for word in ("--conf", conf)]]
    rows = json.loads(cli(*words, "--json")[1])
    assert [row["conf"] for row in rows] == ["", *confs]
    ranked = sorted(rows[1:], key=lambda row: row["smallest_card_bytes"])
    assert ranked != rows[1:]
    lines = cli(*words)[1].splitlines()
    places = [next(at for at, line in enumerate(lines) if line.startswith(f"{row['conf']} ")) for row in ranked]
    assert places == sorted(places)
    assert next(at for at, line in enumerate(lines) if "(recorded)" in line) < places[0]


def test_people_are_told_how_sure_it_is_and_by_which_rules(recorded: dict[str, Any], cli: Cli) -> None:
    whole = cli("whatif", recorded["lengths"].path, "--conf", "max_split_size_mb:64")[1]
    late = cli("whatif", recorded["late"].path, "--conf", "roundup_power2_divisions:8")[1]
    row = next(line for line in whole.splitlines() if line.startswith("max_split_size_mb:64 "))
    assert "exact" in row and "±" not in row
    row = next(line for line in late.splitlines() if line.startswith("roundup_power2_divisions:8 "))
    assert "band" in row and " to " in row and "±" in row
    unbounded = cli("whatif", recorded["late"].path, "--conf", "max_split_size_mb:64")[1]
    row = next(line for line in unbounded.splitlines() if line.startswith("max_split_size_mb:64 "))
    assert "no bound" in row and "±" not in row
    assert "The file is of PyTorch 2.13 or newer: replayed with the rules of 2.15" in whole


def test_a_card_of_another_size_can_be_asked_for(recorded: dict[str, Any], cli: Cli) -> None:
    code, out, _ = cli("whatif", recorded["lengths"].path, "--device-bytes", 4 << 30, "--conf", "", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert row["out_of_memory"]
    assert row["smallest_card_bytes"] > 4 << 30


def test_a_run_is_replayed_from_its_newest_recording(server: RunningServer, cli: Cli) -> None:
    agent, data = Agent(name="recorded-run"), pack(training())
    size = messages.MAX_PIECE_BYTES
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    fields: dict[str, Any] = {"artifact": new_id("w"), "kind": "window", "about": {"device": 0}, "pieces": len(parts)}
    server.send(agent, *(messages.Piece(number=number, data=part, **fields) for number, part in enumerate(parts)))
    code, out, err = cli(
        "whatif", "recorded-run", "--conf", "expandable_segments:True", "--json", "--server", server.url
    )
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [row["recorded"] for row in rows] == [True, False]
    assert rows[0]["replay_residual_bytes"] == 0


def test_a_run_without_recordings_and_a_run_that_is_none_are_not_found(server: RunningServer, cli: Cli) -> None:
    agent = Agent(name="nothing-recorded")
    server.send(agent, agent.samples())
    code, _, err = cli("whatif", "nothing-recorded", "--server", server.url)
    assert code == 3
    assert "no recording" in err and err.endswith("Record a window on its page.\n")
    server.send(agent, agent.ended())
    assert cli("whatif", "nothing-recorded", "--server", server.url)[2].endswith("unless VRAMSCOPE_WINDOWS=0.\n")
    cpu = Agent(name="on-the-cpu")
    cpu.attached = msgspec.structs.replace(cpu.attached, devices=[messages.Device(index=series.CPU, name="CPU")])
    server.send(cpu, cpu.ended())
    code, _, err = cli("whatif", "on-the-cpu", "--server", server.url)
    assert code == 3 and "It used no CUDA device" in err and "its page" not in err, "nobody can record one there"
    assert cli("whatif", "no-such-run", "--server", server.url)[0] == 3


def test_bad_words_and_bad_files_are_refused_with_a_reason(recorded: dict[str, Any], cli: Cli, tmp_path: Path) -> None:
    """2: the words or the file are wrong; 3: there is no such file."""
    path = recorded["ring"].path
    code, _, err = cli("whatif", path, "--conf", "max_split_size_mb:5")
    assert code == 2
    assert "PyTorch would refuse it: max_split_size_mb" in err
    code, _, err = cli("whatif", path, "--conf", "no_such_key:1")
    assert code == 2
    assert "no_such_key" in err
    code, _, err = cli("whatif", tmp_path / "missing.pickle")
    assert code == 3
    assert "file not found" in err
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(gzip.decompress(path.read_bytes())[:5000])
    code, _, err = cli("whatif", cut)
    assert code == 2
    assert "cut off" in err
    state = tmp_path / "state.pickle"
    state.write_bytes(pickle.dumps([{"device": 0, "address": 1 << 40, "total_size": 512, "stream": 0,
                                     "segment_type": "small", "blocks": [{"size": 512, "state": "inactive"}]}]))  # fmt: skip
    code, _, err = cli("whatif", state)
    assert code == 2
    assert "state.pickle: There is no history in the file" in err, "before anything else"
    assert cli("whatif", tmp_path)[0] == 2

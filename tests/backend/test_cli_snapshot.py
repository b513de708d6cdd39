"""``vramscope snapshot FILE``: what it says of a file, every way in which it can end, with and without a server."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import RunningServer
from snapshot_maker import AS_TEXT, IN_FORCE, MARKUP, MIB, SETTINGS, snapshot_of, two_sizes, with_private_pool

from vramscope_server.analysis.snapshot_format import reader
from vramscope_server.cli.progress import COMPILING

pytestmark = pytest.mark.timeout(900)  # the first conversion on a machine compiles what reads: 20 s of a core
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(cli: Cli) -> Cli:
    """``vramscope snapshot`` with these words."""
    return lambda *words: cli("snapshot", *words)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two devices, gzipped."""
    path = tmp_path / "two devices.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot_of(40, devices=2))))
    return path


def test_it_says_what_is_in_a_file(cli: Cli, file: Path) -> None:
    code, out, err = cli(file)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("GPU ")] == ["GPU 0", "GPU 1"]
    assert "peak: 80.0 MiB reserved, 20.0 MiB allocated" in out
    code, out, err = cli(file, "--json")
    answer = json.loads(out)
    assert (code, err, answer["file"], answer["bytes"], answer["notes"]) == (0, "", str(file), file.stat().st_size, [])
    for number, device in enumerate(answer["devices"]):
        assert (device["device"], device["events"], device["allocations"]) == (number, 120, 40)
        assert (device["peak_reserved_bytes"], device["end_allocated_bytes"]) == (80 * MIB, 20 * MIB)
        assert sum(device["strip"].values()) == device["peak_reserved_bytes"]
        assert sum(site["bytes"] for site in device["sites"]) == device["looked_at_bytes"]


def test_a_page_of_a_file_has_each_device_and_loads_nothing(cli: Cli, file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, err = cli(file, "--html", page)
    assert (code, out, err) == (0, f"Written to {page}.\n", "")
    text = page.read_text(encoding="utf-8")
    assert "<h2>GPU 0</h2>" in text and "<h2>GPU 1</h2>" in text and text.count("data-figure>") == 4
    assert "20.0 MiB allocated" in text and "train.py" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    code, _, err = cli(file, "--html", tmp_path / "missing" / "page.html")
    assert (code, "cannot be written" in err) == (2, True)


def test_a_page_is_not_written_over_the_file_and_not_beside_another_output(
    cli: Cli, file: Path, tmp_path: Path
) -> None:
    before = file.read_bytes()
    code, _, err = cli(file, "--html", file)
    assert (code, "is the snapshot file itself" in err) == (2, True)
    assert file.read_bytes() == before
    for more in (("--json",), ("--server", "http://127.0.0.1:9")):
        code, _, err = cli(file, "--html", tmp_path / "page.html", *more)
        assert (code, "cannot be used with" in err) == (2, True)


def test_names_in_a_file_are_text_on_its_page(cli: Cli, tmp_path: Path) -> None:
    script = "</script><script>alert(1)</script>"
    made = two_sizes()
    for event in made["device_traces"][0]:
        event["frames"] = [{"name": script, "filename": f"{MARKUP}{script}", "line": 1}]
    made["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": script}
    path = tmp_path / "<b>evil<b>.pickle"
    path.write_bytes(pickle.dumps(made))
    assert cli(path, "--html", tmp_path / "page.html")[0] == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "alert(1)" in text
    assert "<b>evil" not in text and "<script>alert" not in text


def test_it_says_which_settings_were_in_force_and_which_pools_are_private(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "graphs.pickle"
    path.write_bytes(pickle.dumps(with_private_pool(snapshot_of(20), segments=6)))
    code, out, _ = cli(path)
    out = " ".join(out.split())
    assert code == 0
    assert f"allocator settings: {AS_TEXT} (configured: {SETTINGS['PYTORCH_CUDA_ALLOC_CONF']})" in out
    assert (
        "reported by PyTorch: expandable_segments False, garbage_collection_threshold 0.0, max_round_threshold -1, "
        "max_split_size_mb 128.0, roundup_power2_divisions [256:1,512:2,1024:8]"
    ) in out
    assert "private pools (CUDA graphs or MemPool): 1: 0,1" in out
    (device,) = json.loads(cli(path, "--json")[1])["devices"]
    assert (device["settings"], device["settings_given"]) == (AS_TEXT, SETTINGS["PYTORCH_CUDA_ALLOC_CONF"])
    assert (device["settings_in_force"], device["private_pools"]) == (IN_FORCE, [[0, 1]])


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (None, 3, "file not found"),
        ("folder", 2, "is a folder, not a snapshot file"),
        (b"", 2, "the file is empty"),
        (b'{"traceEvents": []}', 2, "a Chrome trace"),
        (pickle.dumps(snapshot_of(3))[:-9], 2, "the file is cut off"),
        (b"\x80\x04cposix\nsystem\n.", 2, "Nothing was executed"),
    ],
)
def test_what_is_no_snapshot_ends_with_one_line(
    cli: Cli, tmp_path: Path, made: bytes | str | None, code: int, words: str
) -> None:
    path = tmp_path / "some.pickle"
    if isinstance(made, str):
        path.mkdir()
    elif made is not None:
        path.write_bytes(made)
    ended, out, err = cli(path)
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert words in err
    assert str(path) in err


def test_a_server_takes_it_once_and_says_where_it_is(server: RunningServer, cli: Cli, file: Path) -> None:
    code, out, err = cli(file, "--server", server.url)
    assert (code, err) == (0, "")
    ident = out.strip().removeprefix(f"{server.url}/snapshots/")
    assert server.get(f"/snapshots/{ident}")["state"] == "ready"
    assert server.get(f"/snapshots/{ident}")["name"] == file.name
    code, again, _ = cli(file, "--server", f"{server.url}/")
    assert (code, again) == (0, f"The server already has this file.\n{out}")
    code, output, _ = cli(file, "--server", server.url, "--json")
    assert (code, json.loads(output)["snapshot"], json.loads(output)["address"]) == (0, ident, out.strip())


def test_what_a_server_cannot_read_is_told_in_its_words(server: RunningServer, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps({"weights": 1}))
    code, out, err = cli(path, "--server", server.url)
    assert (code, out) == (2, "")
    assert "no dict with a key 'segments'" in err


def test_who_waits_is_told_that_it_goes_on(cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal, from a moment on; here at once. That it compiles comes before what it does then."""
    monkeypatch.setattr("vramscope_server.cli.progress.QUIET_SECONDS", 0.0)
    busy = [True]
    monkeypatch.setattr("vramscope_server.cli.progress.compiling", lambda: busy[0])
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    real = reader.read

    def slowly(path: Path, progress: Callable[[int, int], None]) -> object:
        deadline = time.monotonic() + 60
        while COMPILING not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        busy[0] = False
        while "reading" not in terminal.getvalue() and time.monotonic() < deadline:
            progress(1, 2)
            time.sleep(0.01)
        return real(path, progress=progress)

    monkeypatch.setattr(reader, "read", slowly)
    assert cli(file)[0] == 0
    assert COMPILING in terminal.getvalue()
    assert "reading" in terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_server_or_a_token_it_says_what_is_missing(
    start_server: Callable[..., RunningServer], cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = cli(file, "--server", "http://127.0.0.1:9")
    assert (code, "no server answers" in err) == (4, True)
    guarded = start_server(require_tokens=True)
    code, _, err = cli(file, "--server", guarded.url)
    assert (code, "VRAMSCOPE_TOKEN" in err) == (2, True)
    first = {"Authorization": f"Bearer {guarded.services.first_token}"}
    for role, expected in (("read", 2), ("write", 0)):
        made = guarded.http.post("/tokens", json={"name": role, "role": role}, headers=first).json()
        monkeypatch.setenv("VRAMSCOPE_TOKEN", made["token"])
        code, out, err = cli(file, "--server", guarded.url)
        assert code == expected, err
    ident = out.strip().rpartition("/")[2]
    assert guarded.http.get(f"/snapshots/{ident}").status_code == 401
    assert guarded.http.delete(f"/snapshots/{ident}").status_code == 401
    assert guarded.http.get(f"/recordings/{ident}-0/moments").status_code == 401


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("database_kind", ["postgresql"])
def test_snapshots_are_kept_beside_a_postgresql(
    database_url: str, start_server: Callable[..., RunningServer], cli: Cli, file: Path
) -> None:
    """Taken in, listed, opened and deleted."""
    server = start_server(database=database_url)
    code, out, err = cli(file, "--server", server.url)
    assert (code, err) == (0, "")
    ident = out.strip().rpartition("/")[2]
    (row,) = server.get("/snapshots")["snapshots"]
    assert (row["snapshot"], row["state"], [one["events"] for one in row["devices"]]) == (ident, "ready", [120, 120])
    assert server.get(f"/recordings/{ident}-1/moments")["peak_reserved_bytes"] == 80 * MIB
    assert server.http.delete(f"/snapshots/{ident}").status_code == 204
    assert server.get("/snapshots")["snapshots"] == []

"""docs/cli.md and docs/wire.md say what the code does: each is held to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from running import RunningServer
from typer.testing import CliRunner

from vramscope import launch
from vramscope.protocol import messages
from vramscope.protocol import series as wire_series
from vramscope_server import settings
from vramscope_server.api import problems
from vramscope_server.cli import app
from vramscope_server.store import batch_checks, validation

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text()
WIRE = (DOCS / "wire.md").read_text()
AGENTS_OWN = {"run", "sync"}


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Cells of the tables' rows, code marks taken off, headings left out."""
    for line in re.findall(r"^\|(.*)\|$", text, re.MULTILINE):
        cells = [cell.strip().replace("`", "") for cell in line.split("|")]
        if not set(cells[0]) <= {"-"}:
            yield cells


# ---- the command line ----

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_each_command_has_its_section_and_the_page_has_no_other():
    assert re.findall(r"^## (.+)$", CLI, re.MULTILINE) == list(COMMANDS)


def test_the_list_of_commands_cuts_no_sentence():
    """80 columns, as in a narrow terminal. The commands of the first minutes come first."""
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).output.partition("Commands:")[2]
    assert "..." not in shown
    listed = re.findall(r"^  (\w+)  +\S", shown, re.MULTILINE)
    assert listed == list(COMMANDS) and listed[:3] == ["server", "run", "demo"]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - AGENTS_OWN))
def test_the_options_of_a_command_are_those_of_its_section(name):
    """The same names, the same words, an example, and --json where it can be."""
    options = {p.opts[0]: p.help for p in COMMANDS[name].params if p.opts[0].startswith("--")}
    section_text = {cells[0]: cells[1] for cells in rows(section(CLI, name)) if cells[0].startswith("--")}
    assert section_text == options
    assert re.search(rf"^    (\$ )?vramscope {name}", section(CLI, name), re.MULTILINE)


def test_the_options_of_run_are_those_of_its_section():
    """The agent reads its own words, without typer."""
    section_text = {cells[0] for cells in rows(section(CLI, "run")) if cells[0].startswith("--")}
    parser = launch._parser()
    assert section_text == {
        option for action in parser._actions for option in action.option_strings if option.startswith("--")
    } - {"--help"}


# ---- the wire ----


@pytest.mark.parametrize("stream", wire_series.STREAMS)
def test_each_series_is_told_with_its_unit_and_meaning(stream):
    """In the words that pages show, in the order of the contract, and no others."""
    found = re.search(rf"^### `{stream}`.*?\n(.*?)(?=^##|\Z)", WIRE, re.MULTILINE | re.DOTALL)
    seen = [cells for cells in rows(found[1]) if cells[0] != "series"]
    assert seen == [[name, series.unit, series.meaning] for name, series in wire_series.STREAMS[stream].items()]


@pytest.mark.parametrize(
    "message",
    [
        messages.Batch,
        messages.Ack,
        messages.Attached,
        messages.Block,
        messages.Event,
        messages.Scan,
        messages.Overhead,
        messages.Ended,
    ],
    ids=lambda m: m.__name__,
)
def test_each_field_of_each_message_is_told(message):
    """And none that is not there."""
    tag = message.__struct_config__.tag
    start = WIRE.index(f"**`{tag}`**") if tag else WIRE.index(f"\n## {message.__name__}\n")
    table = re.search(r"\n\| field .*?(?=\n\n)", WIRE[start:], re.DOTALL)
    seen = [name.strip() for cells in rows(table[0]) if cells[0] != "field" for name in cells[0].split(",")]
    assert sorted(seen) == sorted(field.name for field in msgspec.structs.fields(message))


def test_devices_codes_and_limits_are_told():
    for field in msgspec.structs.fields(messages.Device):
        assert f"`{field.name}`" in WIRE
    assert ", ".join(f"{code} {phase}" for code, phase in enumerate(wire_series.PHASES)) in WIRE
    assert ", ".join(wire_series.CATEGORIES) in WIRE
    limits = {cells[1].split()[0] for cells in rows(section(WIRE, "Limits"))}
    assert {
        str(n)
        for n in (
            messages.MAX_BATCH_BYTES,
            messages.MAX_ROWS_PER_BLOCK,
            validation.MAX_ITEMS,
            validation.MAX_VALUES,
        )
    } <= limits
    assert f"to {wire_series.MAX_VALUE}, which is `MAX_VALUE`" in WIRE
    assert f"version {messages.WIRE_VERSION} (`WIRE_VERSION`)" in WIRE
    assert f"up to {batch_checks.MAX_GAPS} gaps" in WIRE
    assert f"{settings.Settings.model_fields['lost_after_seconds'].default:g} seconds" in WIRE


def test_each_problem_is_told_with_its_status():
    section_text = section(WIRE, "Problems")
    for problem in [problems.Problem, *problems.Problem.__subclasses__()]:
        in_table = [str(problem.status), problem.slug] in [cells[:2] for cells in rows(section_text)]
        assert in_table or f"{problem.status} `{problem.slug}`" in section_text, problem


def test_the_sender_of_the_page_works(server: RunningServer, capsys: pytest.CaptureFixture[str]):
    """The example, run as it stands against a real server: its run is there."""
    code = re.search(r"^```python\n(.*?)^```", WIRE, re.MULTILINE | re.DOTALL)[1]
    assert 'SERVER = "http://127.0.0.1:8265"' in code
    exec(compile(code.replace("http://127.0.0.1:8265", server.url), "wire.md", "exec"), {})
    assert "'accepted': 2" in capsys.readouterr().out
    run = server.get("/runs/by hand")
    assert (run["state"], run["steps"], run["peak_allocated_bytes"]) == ("finished", 2, 4 << 30)
    assert (run["peak_step"], run["peak_phase"]) == (2, None)

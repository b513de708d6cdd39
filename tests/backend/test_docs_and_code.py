"""The documents and the code say the same."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from vramscope.protocol import messages
from vramscope.protocol import series as wire_series
from vramscope_server.analysis.leaks.verdict_text import KIND_WORDS
from vramscope_server.api import problems
from vramscope_server.live_events import COLUMNS
from vramscope_server.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_each_setting_stands_in_the_document_with_its_default_and_meaning(name: str) -> None:
    section = (DOCS / "settings.md").read_text().split("## Server")[1]
    field = Settings.model_fields[name]
    (line,) = [line for line in section.splitlines() if line.startswith(f"| `VRAMSCOPE_{name.upper()}` |")]
    assert field.description is not None
    assert field.description in line
    if field.default is None:
        assert "| not set |" in line
    elif field.default_factory is list:
        assert "| none |" in line
    elif name != "data_dir":
        assert f"| `{field.default}` |" in line


def test_the_document_names_no_setting_that_is_not_there() -> None:
    section = (DOCS / "settings.md").read_text().split("## Server")[1]
    named = set(re.findall(r"VRAMSCOPE_([A-Z_]+)", section))
    assert named <= {name.upper() for name in Settings.model_fields}


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PORT": "9000", "RETENTION_DAYS": "", "ALLOWED_HOSTS": "a, b", "REQUIRE_TOKENS": "1"}.items():
        monkeypatch.setenv(f"VRAMSCOPE_{name}", value)
    monkeypatch.setenv("VRAMSCOPE_SERVER", "http://elsewhere:1")
    settings = Settings()
    assert (settings.port, settings.retention_days, settings.allowed_hosts) == (9000, None, ["a", "b"])
    assert settings.tokens_required
    assert Settings(database="/tmp/x.db").database_url == "sqlite:////tmp/x.db"
    assert Settings(database="postgresql://h/x").database_url == "postgresql://h/x"


def test_every_series_stands_in_the_wire_document_with_its_unit_and_meaning() -> None:
    text = (DOCS / "wire.md").read_text()
    for series in wire_series.STREAMS.values():
        for name, one in series.items():
            assert f"| `{name}` | {one.unit} | {one.meaning} |" in text, name
    for name, source in wire_series.LOSSES.items():
        assert f"| `{name}` | {source}" in text
    assert f"This is version {messages.WIRE_VERSION} (" in text


def test_every_field_of_every_message_stands_in_the_wire_document() -> None:
    text = (DOCS / "wire.md").read_text().partition("## Series")[0]
    for message in (
        messages.Batch,
        messages.Attached,
        messages.Device,
        messages.Block,
        messages.Event,
        messages.Scan,
        messages.Leak,
        messages.Piece,
        messages.Overhead,
        messages.Ended,
        messages.Tail,
        messages.Ack,
        messages.Scalars,
    ):
        for name in message.__struct_fields__:
            assert f"`{name}`" in text, f"{message.__name__}.{name}"


def test_every_problem_stands_in_the_wire_document() -> None:
    text = (DOCS / "wire.md").read_text().partition("## Problems")[2]
    for problem in problems.Problem.__subclasses__():
        assert f"| {problem.status} | `{problem.slug}` |" in text or f"{problem.status} `{problem.slug}`" in text, (
            problem.slug
        )


def test_the_http_page_is_up_to_date(tmp_path: Path) -> None:
    """If this fails: python docs/generate_http.py"""
    spec = importlib.util.spec_from_file_location("generate_http", DOCS / "generate_http.py")
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    template = (DOCS / "http.template.md").read_text()
    assert (DOCS / "http.md").read_text() == generator.rendered(generator.openapi(), template)


def test_the_live_events_of_the_document_are_those_that_are_sent() -> None:
    text = (DOCS / "http.md").read_text()
    for kind in ("rows", "run", "scan", "recording", "gap"):
        assert f"`{kind}`" in text
    for stream, names in COLUMNS.items():
        assert set(names) <= set(wire_series.STREAMS.get(stream, {"step": None, **wire_series.LOSSES}))


def test_every_kind_of_leak_has_its_words() -> None:
    assert set(KIND_WORDS) == set(wire_series.LEAK_KINDS)

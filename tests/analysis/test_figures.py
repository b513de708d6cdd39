"""Figures show known values exactly, note unknown ones, and can be themed and updated by a page."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.protocol import series as wire_series
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.fragmentation.breakdown import Breakdown
from vramscope_server.analysis.ownership.categories import CATEGORIES
from vramscope_server.analysis.series.chart_data import LossWindow, RunWindow, SeriesColumn, StreamWindow
from vramscope_server.analysis.series.trend import trend
from vramscope_server.analysis.timeline.axis_spans import AxisSpans
from vramscope_server.analysis.timeline.grouping import Series
from vramscope_server.analysis.timeline.overview import Overview
from vramscope_server.figures import fragmentation, reserved_parts, timeline
from vramscope_server.figures.drawing import Drawing, byte_unit, escaped, samples_of
from vramscope_server.figures.html_file import drawn
from vramscope_server.figures.loss_axis import spans_decades
from vramscope_server.figures.memory_against_time import beside, pareto_front
from vramscope_server.figures.registry import COMPARE_FIGURES, RUN_FIGURES, Figure

GIB = 2.0**30
FRONTEND = Path(__file__).parents[2] / "frontend"


def a_window(
    *,
    rows: int = 300,
    unknown: tuple[str, ...] = (),
    envelope: bool = False,
    x: str = "time",
    name: str = "run",
    capacity: float | None = 80 * GIB,
    device: int = 0,
    scale: float = GIB,
) -> RunWindow:
    """A window with every column of the protocol. Columns whose names contain a word of ``unknown`` are unknown."""
    random = np.random.default_rng(rows)

    def column(stream: str, name: str) -> SeriesColumn:
        if name == "first_step" or any(word in name for word in unknown):  # (of groups of steps only)
            values = np.full(rows, np.nan)
        elif wire_series.STREAMS[stream][name].unit == "code":
            values = random.integers(0, len(wire_series.PHASES), rows).astype(float)
        else:
            values = random.random(rows) * 30 * scale
        return SeriesColumn(values * 0.8, values * 0.9, values) if envelope else SeriesColumn(values, values, values)

    streams = {}
    for stream, series in wire_series.STREAMS.items():
        columns = {name: column(stream, name) for name in series}
        at_peak = {}
        if stream == "steps":
            parts = {f"peak_{category}_bytes" for category in wire_series.CATEGORIES}
            at_peak = {name: columns[name].max for name in (*parts, "peak_allocated_bytes")}
        elif envelope:
            at_peak = {name: columns[name].max for name in fragmentation.READ}
        streams[stream] = StreamWindow(
            stream=stream,  # type: ignore[arg-type]
            x_values=np.arange(rows, dtype=float) + 1,
            envelope=envelope,
            rows=rows * (10 if envelope else 1),
            columns=columns,
            at_peak=at_peak,
        )
    steps = streams["steps"]
    line = trend(steps.x_values, steps.columns["after_step_bytes"].mean)
    row = {
        "name": name,
        "run_id": f"id-{name}",
        "capacity_bytes": capacity,
        "step_seconds_median": 0.3,
        "peak_allocated_bytes": 30 * scale,
        "sampled_allocated_bytes": None,
        "lower_bound_steps": 0,
    }
    falling = 10 / np.sqrt(steps.x_values)
    loss = (
        None
        if "" in unknown
        else LossWindow(
            name="backward_loss",
            x_values=steps.x_values,
            envelope=envelope,
            rows=steps.rows,
            values=SeriesColumn(falling * 0.9, falling, falling * 1.1)
            if envelope
            else SeriesColumn(falling, falling, falling),
            not_finite=(7.0, 7, np.nan),
            odd=2,
        )
    )
    metrics = [] if loss is None or not rows else [dataclasses.replace(loss, name="learning_rate")]
    return RunWindow(
        run=row,
        rank=0,
        device=device,
        x=x,
        x0_seconds=1e9,
        streams=streams,
        trend=line,
        loss=loss,
        metrics=metrics,  # type: ignore[arg-type]
    )


def statements(figure: go.Figure) -> str:
    return " ".join(note.text for note in figure.layout.annotations if note.name == "statement")


def every_figure(window: RunWindow) -> dict[str, go.Figure]:
    drawn = {name: figure.draw(window) for name, figure in RUN_FIGURES.items()}
    other = a_window(name="other")
    return drawn | {name: figure.draw([window, other]) for name, figure in COMPARE_FIGURES.items()}


@pytest.mark.parametrize("figure", [*RUN_FIGURES.values(), *COMPARE_FIGURES.values()], ids=lambda figure: figure.name)
def test_figures_need_columns_of_the_protocol(figure: Figure[Any]) -> None:
    for stream, columns in figure.needs.items():
        assert set(columns) <= set(wire_series.STREAMS[stream])
    if figure.at_peak is not None:
        total, parts = figure.at_peak
        assert any({total, *parts} <= set(columns) for columns in figure.needs.values())
    if figure.trend is not None:
        assert figure.trend in figure.needs["steps"]


@pytest.mark.parametrize("envelope", [False, True])
@pytest.mark.parametrize("x", ["time", "step"])
def test_figures_are_theme_neutral_and_updatable(envelope: bool, x: str) -> None:
    """No template, no opaque background, no color. Each live entry names a trace, a stream and a column."""
    for figure in every_figure(a_window(envelope=envelope, x=x)).values():
        sent = json.loads(figure.to_json())
        layout = sent["layout"]
        assert "template" not in layout or not layout["template"].get("layout")
        assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
        assert not re.search(r"#[0-9a-f]{6}", json.dumps(layout))
        for trace in sent["data"]:
            assert trace["meta"]["role"]
            assert trace["meta"]["kind"] in {"line", "edge", "band", "area", "bar", "marker"}
            assert "color" not in trace.get("line", {})
        for entry in layout["meta"]["stream"]:
            assert 0 <= entry["trace"] < len(sent["data"])
            columns = wire_series.STREAMS.get(entry["stream"], {**wire_series.LOSSES, "learning_rate": None})
            assert entry["field"] in columns
            others = entry.get("minus", [])
            others = [others] if isinstance(others, str) else others
            assert {*others, entry.get("needs", entry["field"])} <= set(columns)
            assert entry["scale"] > 0


def test_every_role_has_a_colour_in_both_themes() -> None:
    css = (FRONTEND / "styles" / "tokens.css").read_text()
    light, rest = css.split("@media", 1)
    by_system, by_choice = rest.split(':root[data-theme="dark"]', 1)
    figures = every_figure(a_window(envelope=True)) | every_figure(a_window(rows=100))
    roles = {trace.meta.get("colour", trace.meta["role"]) for figure in figures.values() for trace in figure.data}
    assert roles
    for role in roles:
        for part in (light, by_system, by_choice):
            assert f"--role-{role}:" in part


def test_the_two_dark_palettes_are_the_same() -> None:
    css = (FRONTEND / "styles" / "tokens.css").read_text()
    rest = css.split("@media", 1)[1]
    by_system, by_choice = rest.split(':root[data-theme="dark"]', 1)
    variables = re.compile(r"(--[\w-]+):\s*([^;]+);")
    assert dict(variables.findall(by_system)) == dict(variables.findall(by_choice))


def luminance(colour: str) -> float:
    """Luminance of a color on a grey screen."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_neighboring_colors_differ_in_grey() -> None:
    """Each theme has its block, the two dark ones are equal, and each color replaces an existing one."""
    css = (FRONTEND / "styles" / "palettes.css").read_text()
    variables = re.compile(r"--role-([\w-]+):\s*([^;]+);")
    light, by_system, by_choice = (dict(variables.findall(part)) for part in blocks(css))
    assert by_system == by_choice and light.keys() == by_system.keys()
    assert light.keys() <= dict(variables.findall((FRONTEND / "styles" / "tokens.css").read_text())).keys()
    stacks = (
        ("parameters", "buffers", "workspaces", "optimizer", "gradients", "activations", "other"),
        ("activations", "temporaries", "other"),
        ("phase-data", "phase-forward", "phase-backward", "phase-optimizer", "phase-eval"),
        ("requested", "rounding", "usable", "unusable"),
        ("requested", "rounding", "inactive-split", "unused"),
    )
    for palette in (light, by_system):
        for stack in stacks:
            for one, other in itertools.pairwise(stack):
                assert contrast(palette[one], palette[other]) > 1.25, (one, other)


def test_colors_of_a_segment_map_differ() -> None:
    """Of categories beside states of blocks, and of cells; in both themes and both palettes."""
    variables = re.compile(r"--([\w-]+):\s*(#[0-9a-f]{6});")
    light, dark = (FRONTEND / "styles" / "tokens.css").read_text().split("@media", 1)
    grey = blocks((FRONTEND / "styles" / "palettes.css").read_text())
    for base, palette in ((light, grey[0]), (dark, grey[1])):
        for chosen in (base, base + palette):
            colours = dict(variables.findall(chosen))
            for roles in (
                (*CATEGORIES, "block-free", "block-pending", "block-rounding", "border"),
                ("block-used", "block-free", "block-pending", "block-rounding", "border"),
            ):
                assert len({colours[f"role-{role}"] for role in roles}) == len(roles), roles
            for role in ("block-pending", "block-rounding"):
                assert contrast(colours[f"role-{role}"], colours["surface"]) >= 3, role
                assert contrast(colours[f"role-{role}"], colours["role-block-free"]) >= 2.5, role


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colors, as WCAG defines it."""
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def blocks(css: str) -> list[str]:
    """Declarations of each selector of the palette."""
    return re.findall(r"html:root\[data-palette[^{]*\{([^}]*)\}", css)


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_unknown_values_are_noted_and_not_drawn(name: str) -> None:
    """No value of an unknown series is drawn; a note says so."""
    window = a_window(unknown=("",), device=wire_series.CPU, capacity=None)
    figure = RUN_FIGURES[name].draw(window)
    assert len(figure.data) == 0
    noted = {"loss": "loss: unknown", "metrics": "no logged metrics"}
    assert noted.get(name, "unknown on the CPU") in statements(figure)


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_an_empty_window_says_so(name: str) -> None:
    figure = RUN_FIGURES[name].draw(a_window(rows=0))
    assert len(figure.data) == 0
    assert "window" in statements(figure)


def rising(rows: int, growth: float) -> RunWindow:
    """A window whose memory after each step rises by ``growth`` bytes, with one more live graph per step."""
    window = a_window(rows=rows, x="step")
    x = window.steps.x_values
    floor, graphs = 20 * GIB + growth * x, x * (growth > 0)
    window.steps.columns["after_step_bytes"] = SeriesColumn(floor, floor, floor)
    window.steps.columns["graphs_alive"] = SeriesColumn(graphs, graphs, graphs)
    return dataclasses.replace(window, trend=trend(x, floor))


def a_fragmented(read: npt.NDArray[np.bool_], envelope: bool = False) -> RunWindow:
    """40 GiB reserved, 20 to 32 GiB allocated, and unusable known in some rows."""
    rows = read.size
    reserved, active = np.full(rows, 40 * GIB), np.linspace(20, 32, rows) * GIB
    values = {
        "reserved_bytes": reserved, "active_bytes": active, "requested_bytes": active * 0.97,
        "unusable_bytes": np.where(read, np.linspace(1, 12, rows) * GIB, np.nan),
    }  # fmt: skip
    window = a_window(rows=rows, envelope=envelope)
    columns = window.samples.columns | {name: SeriesColumn(one, one, one) for name, one in values.items()}
    samples = dataclasses.replace(window.samples, columns=columns, at_peak=values if envelope else {})
    return dataclasses.replace(window, streams=window.streams | {"samples": samples})


def stacked(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.meta["role"]: trace for trace in figure.data if trace.meta["kind"] == "area"}


@pytest.mark.parametrize("envelope", [False, True])
def test_reserved_stack_adds_up_to_the_byte(envelope: bool) -> None:
    """At each known value of unusable, also if it exceeds the free bytes of the sample before."""
    read = np.arange(200) % 20 == 3
    figure = RUN_FIGURES["fragmentation"].draw(a_fragmented(read, envelope))
    parts = stacked(figure)
    assert list(parts) == ["requested", "rounding", "usable", "unusable"]
    for trace in parts.values():
        assert list(trace.x) == list(np.flatnonzero(read) + 1), (
            "what is not known apart between two readings is not drawn"
        )
    total = sum(np.array(trace.y) for trace in parts.values())
    assert np.abs(total * GIB - 40 * GIB).max() < 1
    assert parts["unusable"].y[-1] < 9 and min(parts["usable"].y) == 0, "of 11.2 GiB read as unusable 8.4 were free"
    feeds = {entry["field"]: entry for entry in figure.layout.meta["stream"] if entry.get("needs") == "unusable_bytes"}
    assert feeds["reserved_bytes"]["minus"] == ["active_bytes", "unusable_bytes"]


def test_unusable_is_unknown_before_a_recording() -> None:
    figure = RUN_FIGURES["fragmentation"].draw(a_fragmented(np.zeros(50, bool)))
    assert list(stacked(figure)) == ["requested", "rounding", "unused"]
    assert "unusable: needs a recording" in statements(figure)
    late = (np.arange(400) > 300) & (np.arange(400) % 5 == 0)
    parts = stacked(RUN_FIGURES["fragmentation"].draw(a_fragmented(late)))
    unused, unusable = (np.array(parts[name].y, float) for name in ("unused", "unusable"))
    assert list(np.array(parts["unused"].x)[np.isfinite(unused)]) == list(range(1, 306))
    assert (np.isfinite(unused) != np.isfinite(unusable)).all(), "never both, never neither"
    assert not (unusable == 0).any(), "unknown is not 0"


def test_after_step_memory_has_the_fitted_line_and_interval() -> None:
    window = rising(200, 2.0**20)
    figure = RUN_FIGURES["floor"].draw(window)
    edge, band, line = (trace for trace in figure.data if trace.meta["role"] == "trend-growing")
    assert window.trend is not None
    drawn = np.asarray(line.y) * line.meta["divisor"]
    np.testing.assert_allclose(drawn, window.trend.at(np.asarray(line.x)))
    assert (np.asarray(edge.y) < np.asarray(line.y)).all() and (np.asarray(band.y) > np.asarray(line.y)).all()
    assert "1.00 MiB a step" in statements(figure)
    (graphs,) = (trace for trace in figure.data if trace.meta["role"] == "graphs")
    assert (graphs.yaxis, max(graphs.y)) == ("y2", 200)


def test_flat_after_step_memory_has_no_growth() -> None:
    figure = RUN_FIGURES["floor"].draw(rising(200, 0.0))
    assert {trace.meta["role"] for trace in figure.data} == {"floor", "trend"}
    assert "no detectable growth" in statements(figure)
    assert "no graphs alive after their step" in statements(figure)
    assert "too few for a fit" in statements(RUN_FIGURES["floor"].draw(rising(20, 0.0)))


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_unreadable_rows_are_noted(name: str) -> None:
    window = a_window()
    damage = {"rows": 7, "first_step": 3, "last_step": 9, "first_seconds": 1.0, "last_seconds": 2.0}
    streams = {stream: dataclasses.replace(part, damaged=[damage]) for stream, part in window.streams.items()}
    assert "steps 3 to 9) are damaged" in statements(
        RUN_FIGURES[name].draw(dataclasses.replace(window, streams=streams))
    )


def test_names_of_runs_stay_text() -> None:
    """Plotly reads some HTML in names and labels."""
    hostile = '<b onclick="x()">run</b> %{y}'
    for compared in COMPARE_FIGURES.values():
        draw = compared.draw
        sent = draw([a_window(name=hostile), a_window(name="other")]).to_json()
        for trace in json.loads(sent)["data"]:
            assert "<b" not in trace["name"]
            assert "<b" not in trace.get("hovertemplate", "")
            assert "<b" not in json.dumps(trace.get("text", ""))


def test_baseline_is_first_and_thick() -> None:
    figure = COMPARE_FIGURES["peaks_over_steps"].draw([a_window(name="base"), a_window(name="a"), a_window(name="b")])
    first, *others = figure.data
    assert first.meta["colour"] == "baseline"
    assert all(first.line.width > other.line.width for other in others)
    assert len({other.meta["colour"] for other in others}) == 2


def test_runs_without_a_color_are_grey_and_not_in_the_legend() -> None:
    figure = COMPARE_FIGURES["peaks_over_steps"].draw([a_window(name=str(i)) for i in range(16)])
    colours = [trace.meta["colour"] for trace in figure.data]
    assert len(set(colours[:8])) == 8 and set(colours[8:]) == {"unknown"}
    assert len({trace.meta["role"] for trace in figure.data}) == 16
    assert [trace.meta.get("legend", True) for trace in figure.data] == [True] * 8 + [False] * 8


def test_runs_with_equal_names_have_separate_bars() -> None:
    figure = COMPARE_FIGURES["peaks_side_by_side"].draw([a_window(name="same"), a_window(name="same")])
    assert all(len(set(trace.x)) == len(trace.x) for trace in figure.data)


def test_unknown_categories_have_a_distinct_bar() -> None:
    unknown = a_window(name="unknown", unknown=tuple(f"peak_{category}_bytes" for category in wire_series.CATEGORIES))
    figure = COMPARE_FIGURES["peaks_side_by_side"].draw([a_window(name="known"), unknown])
    bars = {trace.meta["label"]: trace for trace in figure.data if trace.meta["kind"] == "bar"}
    whole = bars.pop("allocated, categories unknown")
    assert np.isnan(whole.y[0]) and whole.y[1] > 0
    assert whole.marker.pattern.shape and whole.meta["hatched"]
    assert not {whole.meta["role"], whole.meta["colour"]} & {bar.meta["role"] for bar in bars.values()}
    assert all(not bar.marker.pattern.shape for bar in bars.values())


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(1, 100)), min_size=1, max_size=12),
)
def test_pareto_front_is_exactly_the_undominated_runs(points: list[tuple[float, float]]) -> None:
    seconds, peaks = (np.array(values) for values in zip(*points, strict=True))
    front = pareto_front(seconds, peaks)
    assert front

    def beaten(i: int) -> bool:
        no_worse = (seconds <= seconds[i]) & (peaks <= peaks[i])
        return bool((no_worse & ((seconds < seconds[i]) | (peaks < peaks[i]))).any())

    for i in range(len(points)):
        if i in front:
            assert not beaten(i)
        else:
            twin = [j for j in front if seconds[j] == seconds[i] and peaks[j] == peaks[i]]
            assert beaten(i) or twin


@given(st.lists(st.integers(0, 6), min_size=2, max_size=80))
@settings(max_examples=60)
def test_samples_of_one_step_are_spread_within_it(steps: list[int]) -> None:
    x: FloatArray = np.sort(np.array(steps, dtype=float))
    window = a_window(rows=0, x="step")
    stream = StreamWindow(stream="samples", x_values=x, envelope=False, rows=x.size, columns={})
    spread = samples_of(
        RunWindow(run=window.run, rank=0, device=0, x="step", x0_seconds=0.0, streams={"samples": stream})
    ).x_values
    assert (np.diff(spread) > 0).all()
    assert (np.floor(spread) == x).all()


def test_units_follow_the_size() -> None:
    assert byte_unit(40 * GIB).name == "GiB"
    assert byte_unit(0.6 * GIB).name == "GiB"
    assert byte_unit(200 * 2.0**20).name == "MiB"
    assert byte_unit(0.0).name == "KiB"


def test_text_for_plotly_is_escaped() -> None:
    assert escaped("<b>&%{x}") == "&lt;b&gt;&amp;%\u200b{x}"


def test_chart_names_do_not_overlap() -> None:
    """Names of two neighbors go to different sides. Points without names count as obstacles too."""
    assert len(set(beside([(1.0, 5.0, 12), (1.02, 5.1, 12)]))) == 2
    alone, beneath = beside([(1.0, 5.0, 12)]), beside([(1.0, 5.0, 12), (1.0, 5.4, 0)])
    assert alone[0] == "top center" != beneath[0]
    repeats = beside([(1.0 + 0.001 * seed, 5.0, 24) for seed in range(12)])
    assert repeats[0], "one of a cluster has its name"
    assert repeats.count("") >= 8, "names that would be covered are left out: hovering shows them"
    far = beside([(float(run), 5.0, 5) for run in range(1, 6)])
    assert all(far), "apart from each other all have names"
    assert beside([]) == []


@pytest.mark.parametrize(
    ("losses", "logarithmic"),
    [
        ([10.8, 6.0, 3.1, 2.9], False),
        ([2.0, 2.1, 2.2, 9e4], True),
        ([*[2.0] * 99, 0.0, 9e4], True),  # one batch without labels
        ([*[2.0] * 9, -1.0, 9e4], False),  # a tenth of it would not be there
        ([*[2.0] * 99, 1e-6, 3.0], False),  # one that came near zero
        ([0.0, 0.0], False),
        ([np.nan, np.nan], False),
        ([], False),
    ],
)
def test_losses_over_decades_have_a_logarithmic_axis(losses: list[float], logarithmic: bool) -> None:
    assert spans_decades(np.array(losses)) is logarithmic


def test_out_of_memory_error_has_a_cross_on_both_figures() -> None:
    """The cross is at the event's reserved or allocated bytes. Events outside of the window have none."""
    event, held = np.arange(6), np.full(6, 1 << 30)
    parts = Breakdown(event, event, event, 0 * event, held, 0 * held, held, 0 * held, peak=3, ooms=[2, 5], misfits=0)
    series = Series(["all"], ["series-0"], np.zeros(1, np.int32), joined=0, peak_bytes=held[:1])
    over = Overview(0, 6, event, series, held[None, :], held, 2 * held, peak=3)
    for figure, gib in [
        (reserved_parts.draw(parts, [], capacity_bytes=None), 2),
        (timeline.draw(over, AxisSpans(), out_of_memory=[2, 5, 9]), 1),
    ]:
        [cross] = [trace for trace in figure.data if trace.meta["role"] == "out-of-memory"]
        assert cross.marker.symbol == "x"
        assert (list(cross.x), [y * cross.meta["divisor"] / GIB for y in cross.y]) == ([2, 5], [gib, gib])


@pytest.mark.parametrize("name", ["query.py", "server_memory.py"])
def test_benchmarks_ask_for_figures_that_exist(name: str) -> None:
    text = (Path(__file__).parents[2] / "benchmarks" / name).read_text(encoding="utf-8")
    assigned = re.search(r"^FIGURES = (\(.*\))$", text, re.MULTILINE)
    assert assigned is not None
    assert set(ast.literal_eval(assigned[1])) <= set(RUN_FIGURES)


def test_a_figure_in_a_file_has_its_notes_above_and_the_colours_of_the_pages() -> None:
    """Notes would lie on the curves, and in turn two areas of one stack would get one colour."""
    window = a_window()
    figure = RUN_FIGURES["stack"].draw(window)
    notes = [note.text for note in figure.layout.annotations if note.name == "statement"]
    for form in (figure, json.loads(figure.to_json())):
        text = drawn(form, 400)
        before, _, inside = text.partition("<div data-figure>")
        drawing = json.loads(inside.split("application/json>", 1)[1].split("</script>")[0])
        assert [note.get("name") for note in drawing["layout"].get("annotations", [])] == [
            note.name for note in figure.layout.annotations if note.name != "statement"
        ]
        assert all(note in before for note in notes)
        areas = [one for one in drawing["data"] if one["meta"]["kind"] == "area" and one.get("visible", True)]
        assert len({one["fillcolor"] for one in areas}) == len({one["meta"]["role"] for one in areas}) > 5
        assert all(text.count(f"</i>{one['name']}</li>") == 1 for one in areas)
        assert not drawing["layout"]["showlegend"]


@pytest.mark.parametrize(("capacity", "shown"), [(80 * GIB, False), (40 * GIB, True)])
def test_a_file_leaves_out_a_capacity_far_above_the_data(capacity: float, shown: bool) -> None:
    drawing = Drawing("step")
    gib = byte_unit(GIB)
    values: FloatArray = np.array([10.0, 15.0]) * GIB
    for role in ("parameters", "activations"):
        drawing.trace(np.array([1.0, 2.0]), values, role=role, label=role, unit=gib, kind="area", stackgroup="held")
    drawing.capacity(capacity, gib)
    assert ("capacity 40.0 GiB" in drawn(drawing.done(), 400)) is shown, "the stack reaches 30 GiB"


@pytest.mark.parametrize(
    ("hidden", "axis", "own_range", "shown"),
    [(False, "y", False, True), (True, "y", False, False), (False, "y2", False, False), (True, "y", True, True)],
)
def test_only_what_is_drawn_beside_a_capacity_counts(hidden: bool, axis: str, own_range: bool, shown: bool) -> None:
    """Levels that are folded have the same bytes once more. Counts have an axis of their own."""
    drawing = Drawing("step")
    gib = byte_unit(GIB)
    x: FloatArray = np.array([1.0, 2.0])
    drawing.trace(x, np.array([10.0, 15.0]) * GIB, role="parameters", label="parameters", unit=gib, kind="line")
    more = np.array([60.0, 60.0]) * GIB
    drawing.trace(x, more, role="reserved", label="reserved", unit=gib, kind="line", axis=axis, visible=not hidden)
    drawing.capacity(80 * GIB, gib)
    if own_range:
        drawing.figure.update_yaxes(range=[0, 90])
    figure = drawing.done()
    assert ("capacity 80.0 GiB" in drawn(figure, 400)) is shown
    assert ("capacity 80.0 GiB" in drawn(json.loads(figure.to_json()), 400)) is shown


def test_in_a_file_the_range_of_a_series_has_the_colour_of_its_line_and_legend() -> None:
    """Of many steps a series is three traces: minimum, maximum and mean."""
    text = drawn(RUN_FIGURES["floor"].draw(a_window(envelope=True)), 400)
    drawing = json.loads(text.split("application/json>", 1)[1].split("</script>")[0])
    colours = {one["line"]["color"] for one in drawing["data"] if one["meta"]["role"] == "floor"}
    assert len(colours) == 1 and sum(one["meta"]["role"] == "floor" for one in drawing["data"]) == 3
    assert f"border-color:{colours.pop()}'></i>memory after each step" in text


def test_in_files_a_run_has_one_colour_in_all_charts() -> None:
    runs = [a_window(name=name, envelope=True) for name in "abc"]
    entries = [
        dict(re.findall(r"border-color:(#\w+).*?</i>(.*?)</li>", drawn(COMPARE_FIGURES[name].draw(runs), 400)))
        for name in ("peaks_over_steps", "memory_against_time", "loss_over_steps")
    ]
    named = [{colour: name for colour, name in one.items() if not name.startswith("Pareto")} for one in entries]
    assert len(named[0]) == 3 and named[0] == named[1] == named[2]


def test_a_figure_without_data_is_its_note_in_a_file() -> None:
    drawing = Drawing("step")
    drawing.say("nothing recorded <yet>")
    assert drawn(drawing.done(), 400) == "<p class=muted>nothing recorded &lt;yet&gt;</p>"


def test_names_of_five_phases_are_not_rotated() -> None:
    """On a phone rotated names are cut off below the chart."""
    six, five = (RUN_FIGURES["phases"].draw(a_window(unknown=unknown)) for unknown in ((), ("eval",)))
    assert [len({one.x[0] for one in figure.data}) for figure in (five, six)] == [5, 6]
    assert (five.layout.xaxis.tickangle, six.layout.xaxis.tickangle) == (0, None)

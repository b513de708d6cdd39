"""The pure functions of the pages, run in the browser that runs them for people."""

# ruff: noqa: RUF001  the signs are those of the pages

from __future__ import annotations

import ast
import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from vramscope.protocol.series import PHASES, phase_place

FORMATS = json.loads((Path(__file__).parents[1] / "number_formats.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def loaded(chromium: Any, server: Any) -> Any:
    page = chromium.new_page()
    page.goto(f"{server.url}/settings")
    yield page
    page.close()


@pytest.fixture
def call(loaded: Any) -> Any:
    def run(module: str, function: str, *arguments: Any) -> Any:
        return loaded.evaluate(
            "async ([module, name, values]) => { const all = await import(`vramscope/${module}.js`);"
            " const result = all[name](...values.map((value) => (/^@-?(NaN|Inf)/.test(value) ? +value.slice(1) : value)));"
            " return result === undefined ? null : result; }",
            [module, function, list(arguments)],
        )

    return run


def remedy(**known: Any) -> dict[str, Any]:
    return {"variable": None, "conf": None, "technique": None, "micro_batches": None, **known}


@pytest.mark.parametrize("framework", ["loop", "huggingface", "lightning", "accelerate", None, "unheard of"])
def test_code_of_remedies_is_python(call: Any, framework: str | None) -> None:
    cases = {
        "gradient_accumulation": 4,
        "gradient_checkpointing": None,
        "optimizer_8bit": None,
        "mixed_precision": None,
    }
    for technique, parts in cases.items():
        code = call("parts/remedy_code", "remedyCode", remedy(technique=technique, micro_batches=parts), framework)
        ast.parse(code)
        assert parts is None or str(parts) in code
    assert call("parts/remedy_code", "remedyCode", remedy(technique="gradient_accumulation"), framework) is None
    assert call("parts/remedy_code", "remedyCode", remedy(technique="batch"), framework) is None
    conf = remedy(technique="allocator", variable="PYTORCH_CUDA_ALLOC_CONF", conf="expandable_segments:True")
    line = call("parts/remedy_code", "remedyCode", conf, framework)
    assert line == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    on_rocm = {**conf, "variable": "PYTORCH_ALLOC_CONF"}
    line = call("parts/remedy_code", "remedyCode", on_rocm, framework)
    assert line == "export PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_the_accumulation_of_a_plain_loop_has_the_gradients_of_the_whole_batch(call: Any) -> None:
    """Also where the rows cannot be divided evenly: the code is run."""
    code = call("parts/remedy_code", "remedyCode", remedy(technique="gradient_accumulation", micro_batches=4), "loop")
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    inputs, targets = torch.randn(10, 3), torch.randn(10, 1)
    loss_of = lambda x, y: torch.nn.functional.mse_loss(model(x), y)  # noqa: E731
    loss_of(inputs, targets).backward()
    whole = model.weight.grad.clone()
    model.zero_grad()
    seen = []

    class Optimizer:
        def step(self) -> None:
            seen.append(model.weight.grad.clone())

        def zero_grad(self) -> None:
            model.zero_grad()

    exec(code, {"inputs": inputs, "targets": targets, "loss_of": loss_of, "optimizer": Optimizer(), "zip": zip})
    torch.testing.assert_close(seen[0], whole)


@pytest.mark.parametrize("function", FORMATS)
def test_numbers_read_as_in_the_sentences_of_the_server(call: Any, function: str) -> None:
    """The table of tests/agent/test_number_format.py."""
    values = [f"@{value}" if isinstance(value, str) else value for value, _ in FORMATS[function]]
    seen = [call("format", function, value) for value in values]
    assert list(zip(values, seen, strict=True)) == [
        (value, words) for value, (_, words) in zip(values, FORMATS[function], strict=True)
    ]


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("duration", [200], "3 min 20 s"),
        ("duration", [7500], "2 h 05 min"),
        ("axisTime", [7], "0:07"),
        ("axisTime", [5025], "1:23:45"),
        ("axisTime", [12.4, 0.2], "12.4 s"),
        ("axisTime", [72.5, 0.5], "1:12.5"),
        ("ago", [100, 103], "now"),
        ("ago", [100, 280], "3 min ago"),
        ("ago", [None, 280], "unknown"),
        ("count", [1234567], "1,234,567"),
        ("exactBytes", [4348654387], "4,348,654,387 bytes"),
        ("exactBytes", [1], "1 byte"),
        ("changeWords", [-0.451], "45.1 % smaller"),
        ("changeWords", [0.03], "3.0 % larger"),
        ("changeWords", [0.0004], "equal"),
        ("changeWords", [-0.25, ["faster", "slower"], 0], "25 % faster"),
        ("graphs", [9_999], "9,999"),
        ("graphs", [10_000], "10,000 or more"),
        ("graphs", [None], "unknown"),
        ("number", [1234.5], "1,235"),
        ("number", [1.7144817552695435e24], "1.71e24"),
        ("number", [-3e12], "-3.00e12"),
        ("number", [0.00000154321], "1.54e-6"),
        ("number", [-3e-5], "-3e-5"),
        ("number", [0.0001], "0.0001"),
        ("ratio", [1.2345], "×1.23"),
        ("partOf", [7, 8], "7 of 8"),
        ("partOf", [8, 8], "8"),
        ("called", ["train"], "train()"),
        ("called", ["<module>"], "<module>"),
        ("quantity", [2**31, "bytes"], "2.00 GiB"),
        ("quantity", [61.4, "celsius"], "61 °C"),
        ("categoryName", ["optimizer"], "optimizer state"),
        ("categoryName", ["activations"], "activations"),
        ("categoryName", [None], "unknown"),
        *(("phasePlace", [phase], phase_place(phase)) for phase in (*PHASES, "phase 9")),
        ("overhead", [None], "not measured yet"),
        (
            "overhead",
            [{"resolvable": True, "fraction": 0.001, "noise_fraction": 0.002}],
            "0.1 % (measured)",
        ),
        ("overhead", [{"resolvable": False, "fraction": None, "noise_fraction": 0.002}], "below 0.5 %"),
        ("overhead", [{"resolvable": False, "fraction": None, "noise_fraction": 0.013}], "below 1.3 %"),
        (
            "overhead",
            [{"resolvable": False, "fraction": 0.2, "noise_fraction": 3.2}],
            "not measured yet",
        ),
    ],
)
def test_numbers_in_words(call: Any, function: str, arguments: list[Any], words: str) -> None:
    assert call("format", function, *arguments) == words


def test_typed_arrays_are_decoded(call: Any) -> None:
    """Undecoded, appending throws, and Array.from gives an empty chart without a word."""
    values = [1.5, -2.0, 3e10]
    data = base64.b64encode(struct.pack("<3d", *values)).decode()
    assert call("series", "decode", {"dtype": "f8", "bdata": data}) == values
    assert call("series", "decode", [1, None]) == [1, None]
    assert call("series", "decode", None) == []


def test_live_rows_are_appended_once_and_unknown_is_a_gap(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { appendRows } = await import("vramscope/series.js");
          const trace = { x: [1, 2], y: [10, 20] };
          const columns = { a: [20, -1, 40, 50], b: [0, 0, 10, 60] };
          const added = appendRows(trace, { field: "a", scale: 0.5 }, columns, [2, 3, 4, 5]);
          const less = { x: [], y: [] };
          appendRows(less, { field: "a", minus: "b" }, columns, [2, 3, 4, 5]);
          const read = { x: [], y: [] };
          const lessTwo = { field: "a", minus: ["b", "c"], needs: "c" };
          appendRows(read, lessTwo, { a: [90, 90, 90], b: [10, 80, -1], c: [5, null, 7] }, [1, 2, 3]);
          appendRows(read, lessTwo, { a: [90], b: [80], c: [20] }, [4]);
          return { added, trace, less, read };
        }"""
    )
    assert result["added"] == 3  # the row at 2 was there already
    assert result["trace"] == {"x": [1, 2, 3, 4, 5], "y": [10, 20, None, 20, 25]}
    assert result["less"]["y"] == [20, None, 30, 0]  # never below zero
    assert result["read"] == {"x": [1, 3, 4], "y": [75, None, 0]}  # the row without c is none of its own


def test_an_address_is_told_what_of_it_is_not_known(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { oddities, isNumber, oneOf, anything } = await import("vramscope/parts/address.js");
          const rules = { x: oneOf("time", "step"), from: isNumber, to: isNumber, q: anything };
          const of = (text) => oddities(Object.fromEntries(new URLSearchParams(text)), rules).map(([, words]) => words);
          const asked = ["", "x=step&from=1.5&to=2e3&q=%3Cb%3E", "x=", "x=clocks", "from=abc", "from= ", "from=5&to=5"];
          return [...asked, "foo=1&toString=2"].map(of);
        }"""
    )
    assert result == [
        [], [], [], ["x=clocks is none of time, step"], ["from=abc is not a number"], ["from=  is not a number"],
        ["from=5 is not before to=5", None], ["foo is not a parameter of this page", "toString is not a parameter of this page"],
    ]  # fmt: skip


def test_alerts_count_what_is_wrong_and_name_what_nobody_looked_for(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { alertsOf } = await import("vramscope/parts/alerts.js");
          const looked = { leak_count: 0, out_of_memory_count: 0, oom_records: null, findings: [] };
          const exact = { foreign_reset_steps: 9, lower_bound_steps: 0 };
          const well = { ...looked, ...exact, run_id: "a", ranks: [{ peak_allocated_bytes: 1 }] };
          const bad = { ...well, leak_count: 2, oom_records: 1, out_of_memory_count: 3, findings: [{}], lower_bound_steps: 40 };
          const untold = { foreign_reset_steps: null, lower_bound_steps: null };
          const old = { ...well, ...untold, leak_count: null, out_of_memory_count: null, findings: null };
          const told = ({ alerts, unknown }) => [alerts.map(({ number, words }) => [number, words]), unknown];
          return [well, bad, old].map(alertsOf).map(told);
        }"""
    )
    bad = [[2, "2 leaks"], [3, "3 out-of-memory errors"], [1, "1 finding"], [1, "counters reset in 40 steps"]]
    assert result == [[[], []], [bad, []], [[], ["leaks", "pitfalls", "resets"]]]


def test_a_saving_that_repeats_do_not_bear_out_is_none(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { compareVerdict } = await import("vramscope/parts/compare_verdict.js");
          const base = { name: "base", peak_allocated_bytes: 100, reasons: [] };
          const spread = (low) => ({ saved_fraction: { n: 3, mean: 0.02, low, high: 0.05, kind: "t95" } });
          const least = { name: "other", peak_allocated_bytes: 98, saved_fraction: 0.02, reasons: [] };
          const other = (low) => ({ ...least, spreads: spread(low) });
          const alone = (saved_fraction) => ({ ...least, saved_fraction });
          return [other(0.01), other(-0.01), alone(0.001), alone(-0.1)].map((row) => compareVerdict([base, row]).textContent);
        }"""
    )
    assert result[0].startswith("other needs the least memory: 2 % less than base.")
    assert result[1].startswith("No saving against base is larger than the differences between repeats.")
    assert result[2].startswith("None of the others saves 0.5 % or more against base.")
    assert result[3].startswith("None of the others needs less memory than base.")


@pytest.mark.parametrize("kind", ["failed", "running", "lost"])
def test_a_run_that_has_not_finished_needs_at_least_its_peak(loaded: Any, kind: str) -> None:
    """It saves nothing for certain; against it as the baseline another run saves at least its share."""
    result = loaded.evaluate(
        """async (kind) => {
          const { compareVerdict } = await import("vramscope/parts/compare_verdict.js");
          const row = (name, peak, saved, kinds = []) => ({
            name, peak_allocated_bytes: peak * 2 ** 30, saved_fraction: saved,
            reasons: kinds.map((one) => ({ kind: one, text: one })),
          });
          const rows = [
            [row("base", 10, null), row("dead", 2, 0.8, [kind])],
            [row("base", 10, null), row("dead", 2, 0.8, [kind]), row("other", 9, 0.1)],
            [row("base", 10, null, [kind]), row("other", 9, 0.1, ["card"])],
          ];
          return rows.map((one) => compareVerdict(one)?.textContent ?? null);
        }""",
        kind,
    )
    assert result[0] is None
    assert result[1].startswith("other needs the least memory: 10 % less than base.")
    assert result[1].endswith("Runs that have not finished, or failed, are excluded.")
    assert result[2].startswith("other needs the least memory: at least 10 % less than base.")


def test_rows_that_are_not_comparable_are_counted_in_words(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { comparability } = await import("vramscope/parts/compare_table.js");
          const row = (number, marked) => ({ name: `run ${number}`, reasons: marked ? [{ text: `reason ${number}` }] : [] });
          return [[1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0]].map((marks) => comparability(marks.map((on, i) => row(i, on))));
        }"""
    )
    assert result == [
        "Both rows are marked ⚠ in the table, with the reasons.",
        "All 3 rows are marked ⚠ in the table, with the reasons.",
        "2 of 3 rows are marked ⚠ in the table, with the reasons.",
        "1 of 3 rows is marked ⚠ in the table, with the reasons.",
        None,
    ]


def test_alerts_follow_the_rules_that_the_server_tells(loaded: Any) -> None:
    result = loaded.evaluate(
        """async () => {
          const { alertsOf } = await import("vramscope/parts/alerts.js");
          const rules = {
            leaks: { on: true, least_bytes: 1000 }, out_of_memory: { on: true }, findings: { on: false }, resets: { on: true },
            headroom: { on: true, below_fraction: 0.05 }, never_needed: { on: true, above_fraction: 0.125 },
          };
          const run = {
            run_id: "a", ranks: [{ peak_allocated_bytes: 1 }], leak_count: 2, leaked_bytes: 999, findings: [{}], alert_rules: rules,
            foreign_reset_steps: 0, lower_bound_steps: 0, capacity_bytes: 100, peak_reserved_bytes: 96, fragmentation_fraction: 0.2,
          };
          const told = ({ alerts, unknown, off }) => [alerts.map(({ words }) => words), unknown, off];
          const unknown = { ...run, leaked_bytes: 1000, capacity_bytes: null, fragmentation_fraction: null };
          const roomy = { ...run, peak_reserved_bytes: 90, fragmentation_fraction: 0.1 };
          const bound = { ...roomy, lower_bound_steps: 1, alert_rules: { ...rules, resets: { on: false } } };
          const sampled = (bytes) => ({ ...roomy, peak_reserved_bytes: null, sampled_reserved_bytes: bytes });
          return [run, unknown, roomy, bound, sampled(96), sampled(90)].map(alertsOf).map(told);
        }"""
    )
    off = ["pitfalls"]
    assert result == [
        [["headroom below 5 %", "more than 12.5 % of reserved never needed"], [], off],
        [["2 leaks"], ["headroom", "never needed"], off],
        [[], [], off],
        [[], ["headroom"], [*off, "resets"]],
        [["headroom below 5 %"], [], off],
        [[], ["headroom"], off],
    ]


def test_statistics_leave_unknown_out(call: Any) -> None:
    assert call("series", "stats", [None, 1, 3, None]) == {"last": 3, "min": 1, "max": 3, "mean": 2}
    assert call("series", "stats", [None]) == {"last": None, "min": None, "max": None, "mean": None}


def test_statistics_of_a_thinned_window_count_every_row(call: Any) -> None:
    whole = {"last": 4, "min": 1, "max": 9, "mean": 3, "rows": 6}
    assert call("series", "windowStats", whole, [])["mean"] == 3
    assert call("series", "windowStats", whole, [None, 11, 7]) == {"last": 7, "min": 1, "max": 11, "mean": 4.5}


@pytest.mark.parametrize(
    ("from_", "to", "texts"),
    [
        (0, 60, ["0:00", "0:10", "0:20", "0:30", "0:40", "0:50", "1:00"]),
        (0, 7200, ["0:00", "15:00", "30:00", "45:00", "1:00:00", "1:15:00", "1:30:00", "1:45:00", "2:00:00"]),
        (10, 11, ["10.0 s", "10.2 s", "10.4 s", "10.6 s", "10.8 s", "11.0 s"]),
    ],
)
def test_time_axes_have_round_ticks(call: Any, from_: float, to: float, texts: list[str]) -> None:
    assert call("series", "timeTicks", from_, to)["texts"] == texts


def test_a_logarithmic_axis_has_whole_decades_or_steps_between_them(call: Any) -> None:
    assert call("series", "logTicks", 0, 6, 7)["texts"] == ["1", "10", "100", "1000", "10000", "1e5", "1e6"]
    assert call("series", "logTicks", -0.1, 1.1, 7)["texts"] == ["1", "2", "5", "10"]
    assert call("series", "logTicks", -3, 30, 7)["texts"][:3] == ["1", "1e5", "1e10"], "only some of many"
    low, high = call("series", "logRange", 0.01, 100)
    assert -2.5 < low < -2 and 2 < high < 2.5
    low, high = call("series", "logRange", 5, 5)
    assert low < 0.69 < 0.7 < high, "one value has room around it"


def test_sparklines_have_gaps_where_nothing_is_known(call: Any) -> None:
    paths = call("series", "sparklinePaths", [1, 2, None, 2], 90, 20)
    assert paths["line"].count("M") == 2
    assert call("series", "sparklinePaths", [], 90, 20) == {"line": "", "area": ""}


def test_csv_defuses_formulas_and_quotes(call: Any) -> None:
    text = call("series", "toCsv", [["name", "x"], ['=cmd("x")', None], ["a,b", -1.5]])
    assert text == 'name,x\r\n"\'=cmd(""x"")",\r\n"a,b",-1.5\r\n'


def test_markdown_keeps_a_table_a_table(call: Any) -> None:
    text = call("series", "toMarkdown", [["run", "peak"], ["a|b\nc <i>", "1 GiB"]])
    assert text.splitlines() == ["| run | peak |", "| --- | ---: |", "| a\\|b c &lt;i> | 1 GiB |"]


def test_smoothing_keeps_gaps_and_a_level_and_weighs_by_the_axis_not_by_the_count(call: Any) -> None:
    x = [0, 1, 2, 3, 10, 11, 12]
    assert call("series", "smoothed", x, [5] * 7, 2) == [5] * 7
    # around 10 there is nothing but 10 and 11; what is unknown stays so, and pulls nothing down
    assert call("series", "smoothed", x, [0, 6, None, 0, 1, 3, 5], 2) == [3, 3, None, 0, 2, 3, 4]


def test_a_window_is_moved_within_what_there_is(call: Any) -> None:
    window, extent = {"from": 2, "to": 6}, [0, 10]
    assert call("series", "shiftedWindow", window, "window", 3, extent, 1) == {"from": 5, "to": 9}
    assert call("series", "shiftedWindow", window, "window", 30, extent, 1) == {"from": 6, "to": 10}
    assert call("series", "shiftedWindow", window, "window", -30, extent, 1) == {"from": 0, "to": 4}
    assert call("series", "shiftedWindow", window, "start", 9, extent, 1) == {"from": 5, "to": 6}
    assert call("series", "shiftedWindow", window, "end", -9, extent, 1) == {"from": 2, "to": 3}
    assert call("series", "shiftedWindow", {"from": 10, "to": 10}, "end", 0, extent, 1) == {"from": 9, "to": 10}


def test_areas_have_gaps_where_nothing_is_known(call: Any) -> None:
    path = call("series", "envelopePath", [0, 1, 2, 3], None, [1, None, 2, 2], [0, 4], 2, 100, 20)
    assert path.count("M") == 2
    assert path.count("Z") == 2
    assert call("series", "envelopePath", [], None, [], [0, 1], 0, 100, 20) == ""


def test_ticks_of_a_clock_stand_at_its_round_times_and_name_a_new_day(chromium: Any, server: Any) -> None:
    context = chromium.new_context(timezone_id="Asia/Kolkata")  # half an hour beside the whole ones
    page = context.new_page()
    page.goto(f"{server.url}/settings")
    found = page.evaluate(
        """async () => {
          const { clockTicks } = await import("vramscope/series.js");
          return clockTicks(0, 7200, Date.UTC(2026, 7, 3, 17, 20) / 1000, 4);
        }"""
    )
    context.close()
    assert found == {"values": [600, 2400, 4200, 6000], "texts": ["23:00", "23:30", "Aug 4 00:00", "00:30"]}


def test_what_holds_for_every_setting_is_said_once(loaded: Any) -> None:
    rows = [
        {"recorded": True, "notes": ["of the recorded ones"]},
        {"recorded": False, "notes": ["laid out again", "odd pages"]},
        {"recorded": False, "notes": ["laid out again"]},
    ]
    script = "async (rows) => (await import('vramscope/parts/whatif_table.js')).sharedNotes(rows)"
    assert loaded.evaluate(script, rows) == ["laid out again"]
    assert loaded.evaluate(script, rows[:2]) == [], "of one other setting the notes stand in its row"


def test_polygons_become_one_path_with_a_gap_between_two(call: Any) -> None:
    x, y = [2_000_000, 2_000_010, 2_000_010, 0, 2_000_020, 2_000_021, 2_000_020], [0, 0, 1 / 3, None, 2, 2, 3]
    assert call("charts/polygons", "polygonsPath", x, y, 2_000_000) == "M0,0L10,0L10,0.33333ZM20,2L21,2L20,3Z"
    assert call("charts/polygons", "polygonsPath", [], [], 0) == ""


PLACED = """async ([events, pixels]) => {
  const { drawPolygons } = await import("vramscope/charts/polygons.js");
  const axis = (range, length) => ({
    range, _offset: 0, _length: length,
    d2p: (value) => Math.round(((value - range[0]) / (range[1] - range[0])) * length * 100) / 100,  // as Plotly rounds
  });
  const plot = document.createElement("div");
  document.body.append(plot);
  plot._fullLayout = { xaxis: axis([0, events], pixels), yaxis: axis([2, 0], 300) };
  const shape = { x: [0, events, events, 0], y: [0, 0, 1, 1], meta: { kind: "polygon", role: "large" } };
  const band = { ...shape, x: [...shape.x], meta: { ...shape.meta, band: true } };
  drawPolygons({ plot }, [{ ...shape, fillcolor: "red" }, { ...band, fillcolor: "blue" }]);
  const drawn = [...plot.previousSibling.querySelectorAll("path")].map((path) => {
    const { a, d } = path.transform.baseVal[0].matrix;
    return [a * events, d, path.getAttribute("stroke")];
  });
  plot.previousSibling.remove();
  plot.remove();
  return drawn;
}"""


@pytest.mark.parametrize("events", [400, 1_000_000, 30_000_000])
def test_polygons_are_as_wide_as_the_axis_for_any_number_of_events(loaded: Any, events: int) -> None:
    """Plotly rounds positions to hundredths of a pixel. A million events on 900 pixels were drawn 0 pixels wide."""
    for (width, height, stroke), border in zip(loaded.evaluate(PLACED, [events, 900]), ("red", "none"), strict=True):
        assert width == pytest.approx(900, rel=1e-3)
        assert height == pytest.approx(150)
        assert stroke == border, "many thin polygons need a border, a band does not"


def test_a_band_with_gaps_is_a_shape_for_each_stretch(call: Any) -> None:
    """Filled as one, its ends would be joined across what is unknown."""
    result = call("series", "bandOutlines", [0, 1, 2, 3, 4], [1, 1, None, 2, None], [3, 4, None, 5, None])
    assert result == {"x": [0, 1, 1, 0, None, 3, 3, None], "y": [3, 4, 1, 1, None, 5, 2, None]}
    assert call("series", "bandOutlines", [0, 1], [None, None], [1, 1]) == {"x": [], "y": []}


RUN_VERDICT = """async ([run, leaks]) => {
  const { runVerdict } = await import('vramscope/parts/run_verdict.js');
  const banner = runVerdict(run, leaks);
  return [banner.textContent, [...banner.querySelectorAll('a')].map((link) => link.getAttribute('href'))];
}"""
NO_LEAK = {"verdict": {"level": "none"}, "scans": [{"not_scanned": ""}]}


@pytest.mark.parametrize(
    ("categories", "recordings", "words", "leads_to"),
    [
        ({"parameters": 30, "activations": 70}, 1, "; 70 % of it is activations and temporaries.", None),
        ({"optimizer": 60, "other": 40}, 1, "; 60 % of it is optimizer state.", None),
        (
            {"parameters": 40, "other": 60},
            2,
            "; 60 % of it is other: See the breakdown of a recorded step.",
            "/runs/r/anatomy",
        ),
        (
            {"parameters": 40, "other": 60},
            0,
            "; 60 % of it is other.",
            None,
        ),
        ({"parameters": None, "other": None}, 1, "The peak is 2.00 GiB, in the optimizer update of step 3.", None),
        # 39 % of the peak is unknown: more than the largest that is known.
        (
            {"parameters": 30, "optimizer": 31, "other": None},
            1,
            "The peak is 2.00 GiB, in the optimizer update of step 3.",
            None,
        ),
        ({"optimizer": 60, "activations": None}, 1, "; 60 % of it is optimizer state.", None),
    ],
)
def test_a_runs_verdict_says_what_most_of_the_peak_is(
    loaded: Any, categories: dict[str, Any], recordings: int, words: str, leads_to: str | None
) -> None:
    held = {name: percent and percent * (2 << 30) // 100 for name, percent in categories.items()}
    run = {
        "run_id": "r", "state": "finished", "capacity_bytes": 80 << 30, "peak_reserved_bytes": 3 << 30, "leak_count": 0,
        "ranks": [], "peak_allocated_bytes": 2 << 30, "peak_step": 3, "peak_phase": "optimizer",
        "tags": [], "peak_categories": held, "recordings": recordings, "fragmentation_fraction": None,
    }  # fmt: skip
    result, links = loaded.evaluate(RUN_VERDICT, [run, NO_LEAK])
    assert f"{words} No leak found." in result
    assert links == ([leads_to] if leads_to else [])


NO_SCAN = " "
"""Instead of what a scan left out: a report that none was needed."""


@pytest.mark.parametrize(
    ("level", "left_out", "head", "words"),
    [
        ("growth", None, "Memory grows.", "Memory after each step rises. The agent has not scanned for the cause."),
        ("none", "", "It fits", "No leak found."),
        ("none", "3 modules", "It fits", "No leak found. The last scan was not complete."),
        ("host", "", "It fits", "No leak found on the device."),
        ("held", "", "It fits", "A value is retained one step longer than needed. No effect on the peak was seen."),
        ("growth", "", "Memory grows.", "Memory after each step rises. No scan found the cause."),
        ("growth", NO_SCAN, "Memory grows.", "Memory after each step rises. The agent has not scanned for the cause."),
        ("unknown", "", "It fits", "Leaks: not known."),
        ("unknown", None, "It fits", "Leaks: not scanned."),
        (None, "", "It fits", "step 3."),
    ],
)
def test_a_runs_verdict_says_of_leaks_what_the_page_leaks_says(
    loaded: Any, level: str | None, left_out: str | None, head: str, words: str
) -> None:
    run = {
        "run_id": "r", "state": "finished", "capacity_bytes": 80 << 30, "peak_reserved_bytes": 3 << 30, "leak_count": 0,
        "tags": [], "ranks": [], "peak_allocated_bytes": 2 << 30, "peak_step": 3, "peak_phase": None, "peak_categories": {},
        "recordings": 0, "fragmentation_fraction": None,
    }  # fmt: skip
    needed = {} if left_out != NO_SCAN else {"tensors": 0}
    scans = [] if left_out is None else [{"not_scanned": left_out.strip(), **needed}]
    leaks = level and {"verdict": {"level": level}, "scans": scans}
    result, links = loaded.evaluate(RUN_VERDICT, [run, leaks])
    assert result.startswith(head)
    assert result.strip().endswith(words)
    assert links == (["/runs/r/leaks"] if level in ("held", "growth", "unknown") else [])


def test_the_figures_of_leaks_claim_no_scan_where_none_was_needed(loaded: Any) -> None:
    scan = {"rank": 0, "step": 99, "tensors": 0, "not_scanned": "", "time_seconds": 1, "reason": "no scan was needed"}
    report = {
        "leaks": [], "scans": [scan], "leaked_bytes": 0, "graphs_alive": 0, "state": "finished", "floor": {},
    }  # fmt: skip
    figures = """async (report) => {
      const { figures } = await import('vramscope/parts/leak_verdict.js');
      const cell = (key) => figures(report).querySelector(`[data-kpi=${key}]`).textContent;
      return [cell('held'), cell('scan')];
    }"""
    held, last = loaded.evaluate(figures, report)
    assert held == "Retainedunknownno scan" and last.startswith("Last scannone") and last.endswith("no scan was needed")


def test_where_no_leak_is_excluded_the_headline_says_what_is_missing(loaded: Any) -> None:
    none: dict[str, Any] = {"growing": None, "slope_bytes_per_step": None}
    scanned, needless = {"tensors": 9, "not_scanned": ""}, {"tensors": 0, "not_scanned": ""}
    cases = [
        ([], none, "Not scanned for leaks."),
        ([], {"growing": False, "slope_bytes_per_step": 0}, "No growth; not scanned for leaks."),
        ([], {"growing": True, "slope_bytes_per_step": 9}, "Memory rises; not scanned for leaks."),
        ([needless], none, "Too few steps to detect growth."),
        ([scanned], none, "No leak found; growth is not known."),
        ([scanned], {"growing": None, "slope_bytes_per_step": 9}, "Memory rises; no leak confirmed."),
        ([scanned], {"growing": False, "slope_bytes_per_step": 0}, "No leak confirmed."),
    ]
    head = """async (reports) => {
      const { figures, verdictBanner } = await import('vramscope/parts/leak_verdict.js');
      return reports.map((report) => [verdictBanner(report).querySelector('strong').textContent,
        figures(report).querySelector('[data-kpi=slope]').textContent]);
    }"""
    verdict = {"level": "unknown", "sentence": ""}
    known = {"leaks": [], "leaked_bytes": None, "graphs_alive": None, "state": "finished", "verdict": verdict}
    now = {"rank": 0, "step": 9, "time_seconds": 1, "reason": ""}
    reports = [{**known, "scans": [scan | now for scan in scans], "floor": floor} for scans, floor, _ in cases]
    found = loaded.evaluate(head, reports)
    assert [words for words, _ in found] == [words for *_, words in cases]
    # A rise that slows down has the same values in the answer as one in jumps.
    assert found[5][1] == "Growth per stepnot steadyin jumps, or more and more slowly"


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("NVIDIA GeForce RTX 4090", ["RTX 4090"]),
        ("NVIDIA H100 80GB HBM3 (emulated)", ["H100 80GB HBM3", "emulated"]),
        ("emulated H100", ["emulated H100"]),
        ("AMD Instinct MI300X", ["AMD Instinct MI300X"]),
    ],
)
def test_a_device_is_named_without_its_maker_and_an_emulated_one_is_called_so(
    loaded: Any, device: str, words: list[str]
) -> None:
    shown = loaded.evaluate(
        "async (device) => { const { RUNS_COLUMNS } = await import('vramscope/parts/runs_columns.js');"
        " const cell = RUNS_COLUMNS.find(({ kind }) => kind === 'gpu').cell({ device });"
        " return cell.filter(Boolean).map((part) => part.textContent); }",
        device,
    )
    assert shown == words


def drawn_before_failure(loaded: Any, run: dict[str, Any], last: dict[str, Any]) -> str:
    text: str = loaded.evaluate(
        "async ([run, last]) => { const { BeforeFailure, compared } = await import('vramscope/parts/before_failure.js');"
        " const rows = [compared('peak allocated', [1, 1, 1, 1, 1, 9], String)];"
        " const card = new BeforeFailure(); card.draw(run, { rows, hosts: [], last, before: 5 });"
        " return card.element.textContent; }",
        [run, last],
    )
    return text


def test_the_time_since_the_last_step_is_that_to_the_end_of_the_run_or_unknown(loaded: Any) -> None:
    last = {"step": 50, "time_seconds": 100.0}
    failed = drawn_before_failure(loaded, {"state": "failed", "ended_seconds": 110.0}, last)
    assert "step 50 ended 10.0 s before the end of the run" in failed
    lost = drawn_before_failure(loaded, {"state": "lost", "last_seen_seconds": 110.0, "ended_seconds": None}, last)
    assert "What changed before the signal was lost" in lost and "step 50 ended" not in lost


@pytest.mark.parametrize("kind", ["bar", "line", "band", "edge", "marker"])
def test_a_legends_swatch_scrolls_with_its_legend(loaded: Any, kind: str) -> None:
    """A bar's once bore the class of the bar at the top of the page, and lay upon it."""
    position = loaded.evaluate(
        "(kind) => { const swatch = document.body.appendChild(document.createElement('span')); swatch.className = `swatch ${kind}`;"
        " const { position, zIndex } = getComputedStyle(swatch); swatch.remove(); return [position, zIndex]; }",
        kind,
    )
    assert position == ["static", "auto"]


@pytest.mark.parametrize(
    ("given", "rows", "words"),
    [
        (
            {"gradient_accumulation": 4, "gradient_checkpointing": True},
            16,
            "accumulation 4 \u00d7 16 rows + checkpointing",
        ),
        ({"gradient_accumulation": 2, "optimizer_8bit": True}, None, "accumulation 2 + 8-bit state"),
        ({"gradient_accumulation": 8}, 1, "accumulation 8 \u00d7 1 row"),
        ({"no_foreach": True}, 64, "foreach=False"),
    ],
)
def test_a_way_to_train_is_told_by_its_techniques(
    call: Any, given: dict[str, Any], rows: int | None, words: str
) -> None:
    none = {"gradient_accumulation": 1, "gradient_checkpointing": False, "optimizer_8bit": False, "no_foreach": False}
    assert call("parts/training_plans", "planText", {"rows": rows, "techniques": {**none, **given}}) == words


@pytest.mark.parametrize("wanted", ["abcd", "dabc", "bcda", "dcba", "acd", "axd", "", "bxyzad"])
def test_children_are_arranged_in_any_order(loaded: Any, wanted: str) -> None:
    shown = loaded.evaluate(
        "async (wanted) => { const { arrangeChildren } = await import('vramscope/dom.js');"
        " const made = Object.fromEntries([...'abcdxyz'].map((id) => [id, Object.assign(document.createElement('i'), { id })]));"
        " const parent = document.createElement('div'); parent.append(...[...'abcd'].map((id) => made[id]));"
        " arrangeChildren(parent, [...wanted].map((id) => made[id]));"
        " return [...parent.children].map(({ id }) => id).join(''); }",
        wanted,
    )
    assert shown == wanted


PLAIN_PLAN = {"gradient_accumulation": 1, "gradient_checkpointing": False, "optimizer_8bit": False, "no_foreach": False}


@pytest.mark.parametrize(
    ("given", "recorded", "words"),
    [
        ({"optimizer_8bit": True}, {}, "about as long"),
        ({"gradient_checkpointing": True}, {}, "about 1.33 × as long"),
        ({"gradient_checkpointing": True}, {"gradient_checkpointing": True}, "about as long"),
        ({"gradient_accumulation": 4}, {}, "about as long, or longer"),
        ({"gradient_accumulation": 4, "gradient_checkpointing": True}, {}, "about 1.33 × as long, or longer"),
        ({}, {"gradient_checkpointing": True}, "about 0.75 × as long"),
    ],
)
def test_expected_time_of_a_plan(call: Any, given: Any, recorded: Any, words: str) -> None:
    assert call("parts/plan_work", "timeWords", {**PLAIN_PLAN, **given}, {**PLAIN_PLAN, **recorded}) == words


def test_plans_that_no_other_beats(call: Any) -> None:
    points = [(1, 40), (1, 30), (1.33, 20), (1.33, 35), (1, None)]
    best = call("parts/plan_work", "bestPlans", [{"work": work, "peak": peak} for work, peak in points])
    assert [(one["work"], one["peak"]) for one in best] == [(1, 30), (1.33, 20)]


def plotted(loaded: Any, peaks_gib: list[float], capacity_gib: float | None) -> dict[str, Any]:
    """What the plot of plans shows, every second one with checkpointing."""
    points = [
        {"name": f"plan {at}", "work": 1.33 if at % 2 else 1, "peak": int(peak * 2**30), "recorded": at == 0}
        for at, peak in enumerate(peaks_gib)
    ]
    found: dict[str, Any] = loaded.evaluate(
        """async ([points, capacity]) => {
          const { plansPlot } = await import("vramscope/parts/plans_plot.js");
          const plot = plansPlot(points, capacity);
          if (!plot) return null;
          const texts = (selector) => [...plot.querySelectorAll(selector)].map((one) => one.textContent);
          return { points: plot.querySelectorAll(".plans-point").length, named: texts(".plans-point .plans-label"),
            card: texts(".plans-card"), far: texts("p"), words: plot.querySelector("[role=img]").getAttribute("aria-label") };
        }""",
        [points, None if capacity_gib is None else int(capacity_gib * 2**30)],
    )
    return found


def test_the_plot_of_plans_names_the_best_and_has_the_line_of_the_card(loaded: Any) -> None:
    shown = plotted(loaded, [40, 20, 30, 25], 32)
    assert (shown["points"], shown["card"], shown["far"]) == (4, ["card 32.0 GiB"], [])
    assert shown["named"] == ["plan 0, 40.0 GiB", "plan 1, 20.0 GiB", "plan 2, 30.0 GiB"]
    assert "plan 2 30.0 GiB, plan 1 20.0 GiB" in shown["words"]
    far = plotted(loaded, [4, 2, 3], 80)
    assert (far["card"], far["far"]) == ([], ["The card has 80.0 GiB, far above each of these."])
    assert plotted(loaded, [4, 2, 3], None)["far"] == []
    assert plotted(loaded, [4, 2], 80) is None


def test_the_verdict_has_the_bounds_of_the_key_figures(loaded: Any) -> None:
    """One rank was measured, and another one has samples alone, which are higher."""
    texts = loaded.evaluate(
        """async () => {
          const { runVerdict } = await import("vramscope/parts/run_verdict.js");
          const run = { run_id: "a", state: "running", steps: 9, tags: [], leak_count: 0, capacity_bytes: 80 * 2 ** 30,
            peak_allocated_bytes: 10 * 2 ** 30, peak_reserved_bytes: 12 * 2 ** 30, ranks: [] };
          const sampled = (gib) => ({ ...run, sampled_allocated_bytes: gib * 2 ** 30, sampled_reserved_bytes: gib * 2 ** 30 });
          const runs = [run, sampled(20), sampled(79), sampled(5), { ...sampled(20), steps: 0 }];
          return runs.map((one) => runVerdict(one).textContent);
        }"""
    )
    measured, higher, tight, lower, early = texts
    assert measured.startswith("So far: it fits, with 68.0 GiB of headroom.")
    assert "The peak is 10.0 GiB" in measured
    assert higher.startswith("So far: it fits, with at most 60.0 GiB of headroom.")
    assert "The peak is at least 20.0 GiB" in higher
    assert tight.startswith("So far: at most 1.00 GiB of headroom.")
    assert lower.startswith("So far: it fits, with at most 68.0 GiB of headroom.")
    assert "The peak is at least 10.0 GiB" in lower
    assert "with at most 60.0 GiB of headroom" in early


def test_what_the_peak_is_made_of_is_in_the_verdict_and_not_again_in_the_key_figures(loaded: Any) -> None:
    note, verdict = loaded.evaluate(
        """async () => {
          const { Kpis } = await import("vramscope/parts/kpis.js");
          const { runVerdict } = await import("vramscope/parts/run_verdict.js");
          const run = { state: "finished", steps: 9, tags: [], leak_count: 0, ranks: [], peak_allocated_bytes: 100,
            peak_reserved_bytes: 120, peak_step: 7, peak_phase: "backward",
            peak_categories: { optimizer: 60, parameters: 30 }, capacity_bytes: 200 };
          const cells = new Kpis(run);
          cells.setRun(run, null);
          return [cells.element.querySelector("[data-kpi=peak] .note").textContent, runVerdict(run).textContent];
        }"""
    )
    assert note == "step 7 · backward"
    assert "60 % of it is optimizer state" in verdict


def test_words_with_numbers_are_sorted_by_their_numbers(loaded: Any) -> None:
    in_order = """async (descending) => {
      const { inOrder } = await import("vramscope/parts/table_sort.js");
      return inOrder(["node 10", null, "node 2", "Node 2", "node 1"], (one) => one, descending); }"""
    assert loaded.evaluate(in_order, False) == ["node 1", "node 2", "Node 2", "node 10", None]
    assert loaded.evaluate(in_order, True)[-2:] == ["node 1", None]

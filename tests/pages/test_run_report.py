"""``vramscope report``: one HTML file of a run or a comparison, opened from the disk in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import sender

from vramscope_server.cli.client import Failure
from vramscope_server.cli.report import write

MOST_BYTES = 3 << 20


def opened(chromium: Any, file: Path) -> tuple[Any, list[str]]:
    """The page, and the addresses that it asked for."""
    page = chromium.new_context(viewport={"width": 400, "height": 800}).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    return page, asked


def test_notes_are_in_the_reports(chromium: Any, own_server: Any, tmp_path: Path) -> None:
    own, file = own_server(), tmp_path / "noted.html"
    runs = [sender.past(own.url, one, hours=1, steps=5) for one in (sender.BASELINE, sender.BF16)]
    for run, note in zip(runs, ("<b>first</b>", ""), strict=True):
        address = f"{own.url}/api/v1/runs/{run.run}"
        httpx.patch(address, json={"note": note}, trust_env=False).raise_for_status()
    for named in ([runs[0].run], [run.run for run in runs]):
        write(own.url, named, str(file))
        words = opened(chromium, file)[0].locator("body").inner_text().lower()
        assert "note" in words and "<b>first</b>" in words


def test_a_run_with_leaks_is_in_one_file(chromium: Any, server: Any, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "run.html"
    write(server.url, [sender.LEAKY.run], str(file))
    assert str(file) in capsys.readouterr().out
    assert file.stat().st_size < MOST_BYTES
    page, asked = opened(chromium, file)
    page.locator("[data-figure] .main-svg").first.wait_for(state="attached")
    words = page.locator("body").inner_text()
    for expected in (
        sender.LEAKY.name,
        "Leaks",
        "growth per step",
        "peak allocated",
        "Memory at the peak of each step",
    ):
        assert expected in words, expected
    assert page.locator("[data-figure]").count() == page.locator("[data-figure] > .plot-container").count() >= 2
    assert asked == [file.as_uri()], "it asks nobody for anything"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.context.close()


def test_the_name_of_the_file_is_that_of_the_run(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(server.url, [sender.LEAKY.run], None)
    (made,) = tmp_path.iterdir()
    assert made.suffix == ".html" and made.stem == sender.LEAKY.name


def test_a_folder_that_is_not_there_is_named(server: Any, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="No such file"):
        write(server.url, [sender.LEAKY.run], str(tmp_path / "none" / "run.html"))


def test_the_compare_page_downloads_the_comparison(page: Any, server: Any, tmp_path: Path) -> None:
    baseline, other = sender.BASELINE.run, sender.CHECKPOINTING.run
    page.goto(f"{server.url}/compare?runs={other},{baseline}&base={baseline}")
    page.locator(".compare-table").wait_for()
    page.locator(".compare-exports summary").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Report (HTML)").click()
    assert downloading.value.suggested_filename == "vramscope-compare.html"
    write(server.url, [baseline, other], str(tmp_path / "same.html"))
    assert Path(downloading.value.path()).read_text() == (tmp_path / "same.html").read_text()


def test_a_comparison_is_in_one_file(
    chromium: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    baseline, other = sender.BASELINE, sender.CHECKPOINTING
    write(server.url, [baseline.run, other.run], None)
    (file,) = tmp_path.iterdir()
    assert file.name == "comparison.html"
    assert file.stat().st_size < MOST_BYTES
    page, asked = opened(chromium, file)
    page.locator("[data-figure] .main-svg").first.wait_for(state="attached")
    words = page.locator("body").inner_text()
    for expected in (f"{baseline.name} and {other.name}", "Reserved", "baseline", "Peaks by category", "ckpt, sweep"):
        assert expected in words, expected
    assert page.locator("[data-figure]").count() == page.locator("[data-figure] > .plot-container").count() >= 2
    assert asked == [file.as_uri()], "it asks nobody for anything"
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.context.close()

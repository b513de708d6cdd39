"""A cluster's job on the page of a run, and the runs of a job in the list."""

from __future__ import annotations

from typing import Any

import sender
from browsing import query
from waiting import eventually


def test_a_run_names_its_job_and_links_to_the_runs_of_it(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.EIGHT.run}")
    facts = page.locator("dl.facts", has=page.get_by_text("Slurm", exact=True)).first
    facts.wait_for()
    text = facts.inner_text()
    assert "4242_7, 4249" in text and "sweep, partition a100, node node-00 of node-[00-01]" in text
    assert "torchrun\n2 nodes, 1 restart" in text
    facts.get_by_role("link", name="4242_7").click()
    rows = page.locator("tr[data-run]")
    eventually(lambda: rows.evaluate_all("(rows) => rows.map((row) => row.dataset.run)") == [sender.EIGHT.run])
    assert query(page) == {"job": "4242_7"}
    page.get_by_role("button", name="Job 4242_7").click()
    eventually(lambda: rows.count() > 1)
    assert query(page) == {}


def test_a_run_without_a_job_says_nothing_of_one(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    facts = page.locator("dl.facts").first
    facts.wait_for()
    assert "Slurm" not in facts.inner_text()

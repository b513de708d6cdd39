"""What holds on every page: narrow screens, dark mode, keyboard, tokens, and a connection that comes and goes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import sqlite3
import time
from typing import Any

import httpx
import pytest
import sender
from browsing import drawn
from legibility import SIDEWAYS, assert_legible
from waiting import eventually

PAGES = [
    "/runs",
    f"/runs/{sender.BASELINE.run}",
    f"/runs/{sender.EIGHT.run}",
    f"/runs/{sender.HOSTILE.run}",
    f"/compare?runs={sender.BASELINE.run},{sender.CHECKPOINTING.run},{sender.HOSTILE.run}&diff=all",
    "/compare",
    "/settings",
]


@pytest.mark.parametrize("path", PAGES)
def test_it_fits_is_legible_and_nothing_lies_on_another(page: Any, server: Any, path: str) -> None:
    page.goto(server.url + path)
    page.locator("main .card:visible").first.wait_for()
    assert_legible(page)


THUMB = 44
"""Pixels, as Apple's guidelines and WCAG's level AAA ask for."""


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (f"/runs/{sender.LEAKY.run}", "vs-chart[data-figure=stack][data-draws]"),
        (f"/runs/{sender.LEAKY.run}/leaks", "vs-chart"),
        ("/runs", "tbody tr"),
        (f"/compare?runs={sender.BASELINE.run},{sender.CHECKPOINTING.run}", "vs-chart"),
        ("/settings", ".settings:not(.loading)"),
        ("/snapshots", ".snapshot-list h2"),
    ],
)
def test_controls_suit_a_thumb_on_a_narrow_screen(page: Any, server: Any, path: str, last: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(server.url + path)
    page.locator(last).first.wait_for()
    # One call in the page finds and measures: the head of a run that is live is drawn again now and then.
    measured = """() => [...document.querySelectorAll(
          ":is(.button, .fold, .tabs a, details > summary, select, input:not([type=checkbox], [type=file]))")]
        .filter((one) => one.checkVisibility())
        .map((one) => [one.innerText, one.getBoundingClientRect().height])"""
    eventually(lambda: len(page.evaluate(measured)) > 3, what="controls that are shown")
    heights = page.evaluate(measured)
    assert [one for one in heights if one[1] < THUMB] == []


def test_a_run_s_duration_has_units(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    assert re.fullmatch(r"ran for \d min \d\d s", page.locator("[data-age]").inner_text())


def test_dark_follows_the_system_and_the_key(page: Any, server: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    chart = drawn(page, "stack")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(background)
    colour = (
        "(chart) => chart.plot.data.find((trace) => trace.meta.role === 'gradients' && trace.line.width).line.color"
    )
    dark_line = chart.evaluate(colour)
    page.keyboard.press("d")
    assert page.evaluate(background) != dark
    eventually(lambda: chart.evaluate(colour) != dark_line, what="the chart in the other colours")
    page.reload()
    assert page.evaluate(background) != dark, "the choice is kept"


def test_the_keyboard_leads_everywhere_and_explains_itself(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs")
    page.locator("tbody tr").first.wait_for()
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.get_by_role("heading", name="Settings").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.get_by_role("heading", name="Compare").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("g r?")
    assert page.get_by_label("Add a run").input_value() == "g r?", "keys in a field are text"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    assert "go to Runs" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.go_back()
    page.get_by_role("heading", name="Settings").wait_for()


def test_settings_show_the_server(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/settings")
    page.get_by_text("Plotly.js", exact=True).wait_for()
    text = page.locator("main").inner_text()
    assert re.search(r"plotly.py\s+7\.", text)
    assert re.search(r"Plotly.js\s+4\.", text)
    assert re.search(r"size\s+\d", text)
    eventually(lambda: socket.gethostname() in page.locator("main").inner_text())
    assert page.locator(".role-mark").first.is_hidden(), "this server asks for no tokens"
    assert f"vramscope demo --steps 300 --server {server.url}" in page.locator("main").inner_text()
    lines = other_machine(page)
    port = server.url.rpartition(":")[2]
    assert lines == [
        "pip install vramscope",
        f"ssh -f -N -L {port}:127.0.0.1:{port} {socket.gethostname()}",
        f"vramscope run --server {server.url} -- python train.py",
    ]


def other_machine(page: Any) -> list[str]:
    """Lines for a training on another machine, as they are copied."""
    part = page.locator("main div", has=page.locator("> p", has_text="A training on another machine"))
    return part.last.locator("pre").inner_text().splitlines()  # type: ignore[no-any-return]


def test_alerts_are_set_for_everybody_and_a_run_counts_by_them(page: Any, own_server: Any) -> None:
    own = own_server()
    run = sender.past(
        own.url, dataclasses.replace(sender.BASELINE, findings=(sender.IN_EVAL_MODE,)), hours=1, steps=30
    ).run
    page.goto(f"{own.url}/runs/{run}")
    alerts = page.locator("[data-kpi=alerts]")
    eventually(lambda: alerts.locator(".value").inner_text() == "1")
    page.goto(f"{own.url}/settings")
    rule = page.locator("[data-rule=headroom]")
    page.set_viewport_size({"width": 330, "height": 800})
    for name in ("leaks", "headroom", "forecast", "never_needed"):
        unit = page.locator(f"[data-rule={name}] .with-unit")
        height = unit.locator("input").bounding_box()["height"]
        assert unit.bounding_box()["height"] < 1.5 * height, "a unit is beside its number"
    page.set_viewport_size({"width": 1440, "height": 900})
    assert rule.get_by_role("spinbutton").is_disabled()
    rule.get_by_role("checkbox").check()
    field = rule.get_by_role("spinbutton")
    eventually(field.is_enabled)
    page.context.watcher.expected.append("422")
    field.fill("150")
    field.press("Enter")
    by_role = page.locator(".card", has=page.get_by_role("heading", name="Alerts")).get_by_role("status")
    eventually(lambda: "less than 1" in by_role.inner_text() and "Nothing was changed" in by_role.inner_text())
    assert field.get_attribute("aria-invalid") == "true" and field.input_value() == "150", "there to be mended"
    field.fill("99")
    field.press("Enter")
    eventually(lambda: by_role.inner_text() == "Stored." and field.get_attribute("aria-invalid") is None)
    limit = page.locator("[data-rule=forecast]").get_by_role("spinbutton")
    assert limit.input_value() == "60", "minutes"
    limit.fill("90")
    limit.press("Enter")
    rules = f"{own.url}/api/v1/alerts"
    eventually(lambda: httpx.get(rules, trust_env=False).json()["rules"]["forecast"]["below_seconds"] == 5400)
    page.locator("[data-rule=findings]").get_by_role("checkbox").uncheck()
    eventually(lambda: not httpx.get(f"{own.url}/api/v1/alerts", trust_env=False).json()["rules"]["findings"]["on"])
    page.reload()
    eventually(lambda: page.locator("[data-rule=headroom] input[type=number]").input_value() == "99")
    page.goto(f"{own.url}/runs/{run}")
    note = alerts.locator(".note")
    eventually(lambda: "headroom below 99 %" in note.inner_text() and "not counted: pitfalls" in note.inner_text())
    assert alerts.locator(".value").inner_text() == "1"


def test_figures_may_differ_by_brightness_and_this_browser_keeps_it(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/settings")
    before = "getComputedStyle(document.documentElement).getPropertyValue('--role-gradients')"
    coloured = page.evaluate(before)
    page.get_by_role("button", name="Brightness").click()
    page.get_by_text("From dark blue to light yellow").wait_for()
    bright = page.evaluate(before)
    assert bright != coloured
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    chart = drawn(page, "stack")
    of = "(chart) => chart.plot.data.find((trace) => trace.meta.role === 'gradients').line.color"
    assert chart.evaluate(of) == bright.strip()
    page.goto(f"{server.url}/settings")
    page.get_by_role("button", name="Colour palette").click()
    page.reload()
    eventually(lambda: page.evaluate(before) == coloured)


def test_a_doubtful_clock_is_shown_beside_the_limits(page: Any, own_server: Any) -> None:
    server = own_server(retention_days=90)
    page.goto(f"{server.url}/settings")
    page.get_by_text("runs without data for 90 days are deleted").wait_for()
    assert "The clock" not in page.locator("main").inner_text()
    doubt = {"seen_ns": 10**18, "believed_ns": 10**18 - 5 * 86_400 * 10**9, "left_ns": 86_400 * 10**9}
    with contextlib.closing(sqlite3.connect(server.data_dir / "vramscope.db")) as database, database:
        database.execute("INSERT INTO preferences (name, value) VALUES ('clock', ?)", [json.dumps(doubt)])
    page.reload()
    page.get_by_text("The clock went ahead by 5 d 0 h.").wait_for()


def test_tokens_are_made_shown_once_and_revoked(page: Any, own_server: Any) -> None:
    own = own_server()
    page.goto(f"{own.url}/settings")
    page.get_by_label("Name of the new token").fill("cluster <b>")
    page.get_by_role("button", name="Create token").click()
    secret = page.locator(".secret code")
    secret.wait_for()
    plain = secret.inner_text()
    assert len(plain) > 20
    row = page.locator(".tokens tbody tr", has_text="cluster <b>")
    row.wait_for()
    page.reload()
    row.wait_for()
    assert plain not in page.content()
    row.get_by_role("button", name="Revoke").click()
    row.get_by_role("button", name="Revoke permanently?").click()
    row.wait_for(state="detached")


def test_a_server_that_demands_a_token_gets_one(page: Any, own_server: Any) -> None:
    """The page asks, the cookie is out of reach of scripts, and signing out ends it."""
    own = own_server()
    made = httpx.post(f"{own.url}/api/v1/tokens", json={"name": "me", "role": "read"}, trust_env=False).json()
    own.stop()
    own.settings["require_tokens"] = True
    own.start()
    page.context.watcher.expected += ["401", "403"]
    page.goto(f"{own.url}/runs")
    field = page.get_by_label("Token")
    field.fill("not-a-token")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Unknown or revoked token").wait_for()
    field.fill(made["token"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("waiting for the first run").wait_for()
    page.get_by_text("export VRAMSCOPE_TOKEN=…").wait_for()
    assert page.evaluate("document.cookie") == ""
    assert page.context.cookies()[0]["httpOnly"]
    assert page.context.cookies()[0]["sameSite"] == "Strict"
    page.reload()
    page.get_by_text("waiting for the first run").wait_for()
    page.goto(f"{own.url}/settings")
    page.get_by_text("Your token has the role read: it reads everything and changes nothing.").wait_for()
    assert page.locator(".tokens .role-mark").inner_text() == "role admin", "what the others may change is marked"
    assert page.get_by_label("Name of the new token").count() == 0, "only an admin makes tokens"
    page.get_by_text("it cannot change these rules").wait_for()
    assert page.locator("[data-rule=headroom]").get_by_role("checkbox").is_disabled()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token", exact=True).wait_for()  # (the page that is left has a "Name of the new token")
    assert not page.context.cookies()


def test_a_token_is_bound_to_projects_on_the_page(page: Any, own_server: Any) -> None:
    own = own_server(require_tokens=True)
    page.context.watcher.expected += ["401", "403"]
    page.goto(f"{own.url}/settings")
    page.get_by_label("Token", exact=True).fill(own.first_token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Name of the new token").fill("vision team")
    page.get_by_label("Projects of the new token").fill("vision, nlp,")
    page.get_by_role("button", name="Create token").click()
    page.locator(".tokens tbody tr", has_text="nlp, vision").wait_for()
    secret = page.locator(".secret code").inner_text()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token", exact=True).fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("waiting for the first run").wait_for()
    page.goto(f"{own.url}/settings")
    page.get_by_text("It is bound to nlp, vision and sees only the runs of these projects.").wait_for()
    page.get_by_text("Your token is bound to projects: it cannot change these rules.").wait_for()
    page.goto(f"{own.url}/snapshots")
    page.get_by_label("Project of the file").select_option("vision")
    file = {"name": "x.pickle", "mimeType": "application/octet-stream", "buffer": b"no snapshot"}
    page.get_by_label("Snapshot files").set_input_files(file)
    page.get_by_role("heading", name="x.pickle", exact=True).wait_for()
    headers = {"Authorization": f"Bearer {secret}"}
    rows = httpx.get(f"{own.url}/api/v1/snapshots", headers=headers, trust_env=False).json()["snapshots"]
    assert [row["project"] for row in rows] == ["vision"]


def test_the_audit_log_is_shown_to_an_admin(page: Any, own_server: Any) -> None:
    own = own_server(require_tokens=True)
    page.context.watcher.expected += ["401"]
    headers = {"Authorization": f"Bearer {own.first_token}"}

    def ask(method: str, path: str, body: dict[str, Any]) -> None:
        httpx.request(method, f"{own.url}/api/v1{path}", json=body, headers=headers, trust_env=False).raise_for_status()

    ask("PATCH", "/alerts", {"leaks": {"least_bytes": 5}})
    for number in range(22):
        ask("POST", "/tokens", {"name": f"<b>{number}</b>", "role": "read", "projects": ["nlp"]})
    page.goto(f"{own.url}/settings")
    page.get_by_label("Token", exact=True).fill(own.first_token)
    page.get_by_role("button", name="Sign in").click()
    rows = page.locator(".audit tbody tr")
    rows.first.wait_for()  # (the settings are hidden until all of them are there)
    assert rows.count() == 20
    newest = rows.first.inner_text()
    assert "created the token <b>21</b>" in newest and "projects: nlp" in newest and "127.0.0.1" in newest
    page.get_by_role("button", name="Show older changes").click()
    eventually(lambda: rows.count() == 24)
    assert "leaks.least_bytes: 0 → 5" in rows.nth(22).inner_text()
    assert "vramscope server" in rows.last.inner_text() and "this machine" in rows.last.inner_text()
    assert page.get_by_role("button", name="Show older changes").count() == 0


def test_a_user_whom_a_proxy_names_needs_no_token(page: Any, own_server: Any) -> None:
    names = {"proxy_user_header": "Remote-User", "trusted_proxies": "127.0.0.1", "proxy_admins": "boss"}
    own = own_server(**names)
    page.context.watcher.expected += ["403"]
    page.set_extra_http_headers({"Remote-User": "ana"})
    page.goto(f"{own.url}/runs")
    page.get_by_text("waiting for the first run").wait_for()
    page.goto(f"{own.url}/settings")
    words = "You are signed in as ana by the proxy and have the role read, which reads everything and changes nothing."
    page.get_by_text(words).wait_for()
    page.get_by_text("Your role is read: it cannot change these rules.").wait_for()
    assert page.get_by_role("button", name="Sign out").count() == 0, "that is the proxy's"
    page.set_extra_http_headers({"Remote-User": "boss"})
    page.reload()
    page.get_by_text("You are signed in as boss by the proxy and have the role admin.").wait_for()
    page.get_by_label("Name of the new token").fill("cluster")
    page.get_by_role("button", name="Create token").click()
    page.locator(".secret code").wait_for()
    page.reload()
    row = page.locator(".audit tbody tr", has_text="created the token cluster")
    row.wait_for()
    assert "boss" in row.inner_text()


def test_an_admin_copies_lines_for_another_machine_with_a_token_that_works(page: Any, own_server: Any) -> None:
    own = own_server(require_tokens=True)
    first = own.first_token
    page.context.watcher.expected += ["401"]
    page.goto(f"{own.url}/settings")
    page.get_by_label("Token", exact=True).fill(first)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Create a token and show the lines").click()
    page.get_by_text("export VRAMSCOPE_TOKEN=vrs_").wait_for()
    token = next(line for line in other_machine(page) if "TOKEN" in line).partition("=")[2]
    training = sender.past(own.url, sender.Training(name="elsewhere"), hours=1, steps=5, token=token)
    page.goto(f"{own.url}/runs/{training.run}")
    page.get_by_role("heading", name="elsewhere").wait_for()


def test_where_messages_go_is_shown_and_tested(page: Any, own_server: Any) -> None:
    pytest.importorskip("apprise")
    page.goto(f"{own_server().url}/settings")
    page.get_by_text("VRAMSCOPE_NOTIFY").wait_for()
    page.goto(f"{own_server(notify=['json://user:secret@127.0.0.1:9/hook']).url}/settings")
    card = page.locator(".card", has=page.get_by_role("heading", name="Messages"))
    card.get_by_text("nothing sent yet").wait_for()
    card.get_by_role("button", name="Send a test").click()
    card.get_by_text("1 of 1 did not accept it.").wait_for()
    card.get_by_text("The last message was not accepted").wait_for()
    assert "secret" not in page.content()
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def last_row(tab: Any) -> Any:
    return tab.locator("main").get_attribute("data-last-row")


def rows_reach(tab: Any) -> None:
    before = last_row(tab)
    eventually(lambda: last_row(tab) != before, what="new rows in this tab")


def test_eight_tabs_are_live_at_once(context: Any, server: Any, live_run: Any) -> None:
    """Polling leaves no connection open: a browser keeps at most six to a host."""
    training = live_run(server, name="eight tabs")
    tabs = [context.new_page() for _ in range(8)]
    for tab in tabs[:7]:
        tab.goto(f"{server.url}/runs")
    tabs[7].goto(f"{server.url}/runs/{training.run}")
    steps = [tab.locator(f'tr[data-run="{training.run}"] .steps') for tab in tabs[:7]]
    before = [text.inner_text() for text in steps]
    rows_reach(tabs[7])
    for text, first in zip(steps, before, strict=True):
        eventually(lambda text=text, first=first: text.inner_text() != first, what="news in this tab")


def test_hidden_tab_does_not_poll_and_catches_up(page: Any, server: Any, live_run: Any) -> None:
    training = live_run(server, name="a hidden tab")
    page.goto(f"{server.url}/runs/{training.run}")
    drawn(page, "stack")
    rows_reach(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/live/delta" in request.url else None)
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    page.locator(".live[data-state=asleep]").wait_for()
    asked.clear()
    page.wait_for_timeout(2_000)
    assert not asked
    page.evaluate(hide, False)
    page.locator(".live[data-state=live]").wait_for()
    rows_reach(page)
    assert asked


def test_a_lost_server_is_told_and_caught_up_with(page: Any, own_server: Any) -> None:
    own = own_server()
    training = sender.Training(name="interrupted", run="1057000000000001")
    rank = sender.Rank(own.url, training, start=time.time() - 20)
    rank.history(40)
    page.goto(f"{own.url}/runs/{training.run}")
    memory = drawn(page, "stack")
    page.locator(".live[data-state=live]").wait_for()
    page.context.watcher.expected += ["net::ERR_", "503"]
    newest = float(memory.get_attribute("data-newest"))
    own.stop()
    page.get_by_text("Data stale since").wait_for()
    assert re.search(r"stale since \d\d:\d\d:\d\d", page.locator(".live").inner_text())
    assert page.locator(".charts.stale").count() == 1
    own.start()
    rank = sender.Rank(own.url, training, start=rank.start)
    rank.session, rank.step, rank.now = "00000000000000000000aaaa", 40, rank.start + 18
    rank.history(40)
    page.locator(".live[data-state=live]").wait_for()
    eventually(lambda: page.get_by_text("Data stale since").count() == 0)
    eventually(lambda: float(memory.get_attribute("data-newest")) > newest + 5, what="the window was fetched again")


def told_problems(page: Any) -> str:
    return str(page.locator(".problems").inner_text())


def test_a_full_disk_is_said_on_every_page_as_long_as_it_is(context: Any, own_server: Any, small_disk: Any) -> None:
    disk = small_disk(6000)
    own = own_server(disk.path)
    rank = sender.Rank(own.url, sender.Training(name="on a small disk", run="d15c000000000001"), start=time.time() - 20)
    rank.history(20)
    run, runs = context.new_page(), context.new_page()
    context.watcher.expected += ["503"]
    runs.goto(f"{own.url}/runs")
    run.goto(f"{own.url}/runs/{rank.training.run}")
    for page in (run, runs):
        page.locator(".live[data-state=live]").wait_for()
        assert told_problems(page) == ""
    ballast = disk.fill()
    noise = list(rank.blocks(*rank.make(200)))
    with pytest.raises(RuntimeError, match=r"503.*disk that holds the database is full"):
        for _ in range(100):
            rank.post(*noise)
    for page in (run, runs):
        eventually(lambda page=page: "the disk that holds the database is full" in told_problems(page))
        page.locator("main .card:visible").first.wait_for()
    run.reload()
    eventually(
        lambda: "the disk that holds the database is full" in told_problems(run), what="told to one who comes now"
    )
    run.locator("main h1:visible").first.wait_for()
    assert_legible(run)
    run.locator(".rail").get_by_text("Settings").click()
    run.get_by_role("heading", name="Settings").wait_for()
    assert told_problems(run).count("is full") == 1 and "is full" not in run.locator("main").inner_text()
    ballast.unlink()
    disk.resize(60_000)
    rank.sequence -= 1  # what was refused is sent again
    eventually(lambda: posted(rank, noise), what="the server takes again")
    for page in (run, runs):
        eventually(lambda page=page: told_problems(page) == "", what="no trouble any more")


def posted(rank: sender.Rank, blocks: list[Any]) -> bool:
    try:
        rank.post(*blocks)
    except RuntimeError:
        rank.sequence -= 1
        return False
    return True


def test_a_read_only_disk_is_said_on_every_page_and_all_is_shown(page: Any, own_server: Any, small_disk: Any) -> None:
    disk = small_disk(20_000)
    own = own_server(disk.path)
    training = sender.past(own.url, sender.Training(name="kept", run="d15c000000000002"), hours=1, steps=20)
    own.stop()
    disk.protect()
    own.start()
    page.goto(f"{own.url}/runs")
    page.locator(f'tr[data-run="{training.run}"]').wait_for()
    eventually(lambda: "read-only" in told_problems(page))
    assert_legible(page)
    page.goto(f"{own.url}/runs/{training.run}")
    drawn(page, "stack")
    eventually(lambda: "read-only" in told_problems(page))
    page.reload()
    page.locator(".live[data-state=live]").wait_for()
    assert "read-only" in told_problems(page)


def test_the_audit_log_fits_however_long_names_are(page: Any, own_server: Any) -> None:
    server = own_server()
    training = sender.Training(name="gpt2-with-a-name-that-has-no-space-" * 5)
    sender.past(server.url, training, hours=1, steps=5)
    changes = {"note": "a note. " * 40, "pinned": True}
    httpx.patch(f"{server.url}/api/v1/runs/{training.run}", json=changes, trust_env=False).raise_for_status()
    page.goto(f"{server.url}/settings")
    page.locator(".audit tbody tr").first.wait_for()
    assert_legible(page)
    for width in (1440, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(SIDEWAYS) == []
        height = page.locator(".audit td.when").first.evaluate("(cell) => cell.getBoundingClientRect().height")
        assert width > 400 or height < 30, "the time is one line"


def test_an_unknown_page_offers_the_newest_runs_and_not_the_pinned(page: Any, own_server: Any) -> None:
    server = own_server()
    old, new = (sender.Training(name=name) for name in ("old", "new"))
    sender.past(server.url, old, hours=9, steps=5)
    sender.past(server.url, new, hours=1, steps=5)
    httpx.patch(f"{server.url}/api/v1/runs/{old.run}", json={"pinned": True}, trust_env=False).raise_for_status()
    page.goto(f"{server.url}/no-such-page")
    page.get_by_text("Newest runs").wait_for()
    assert page.locator(".not-found li").all_inner_texts() == ["new", "old"]

"""The record itself: complete and quick with very many blocks."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

from vramscope.protocol.oom_record import BadOomRecord, unpack  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]

MANY = Death(
    "a hundred thousand blocks",
    "activations",
    """
    model = stack(2, 256)
    optimizer = optimizer_of(model)
    step(model, optimizer, 64, 256)
    kept = [torch.empty(1, device="cuda") for _ in range(100_000)]
    began = time.perf_counter()
    try:
        megabytes(1 << 14)
    except torch.OutOfMemoryError:
        caught = time.perf_counter() - began
    at = time.time()
    step(model, optimizer, 64, 256)
    for _ in range(2):
        try:
            megabytes(1 << 14)
        except torch.OutOfMemoryError:
            pass
    print(json.dumps({"caught": caught, "at": at, "alive": torch.cuda.memory_stats()["active.all.current"]}), flush=True)
    time.sleep(0.5)
    os._exit(0)  # (freeing all these tensors takes longer than all the rest)
    """,
)

SKIPPED = Death(
    "a batch that was skipped, and a larger one",
    "activations",
    """
    model = stack(12, 1024)
    optimizer = optimizer_of(model)
    for rows in (2000, 2000, 2000, 2000, 60_000, 2000, 90_000):
        parts = R.get("micro_batches", 1) if rows == 90_000 else 1
        try:
            for _ in range(parts):
                loss = model(torch.empty(rows // parts, 1024, device="cuda")).square().mean()
                loss.backward()
        except torch.OutOfMemoryError:
            if rows == 90_000:
                raise
        else:
            optimizer.step()
        loss = None
        optimizer.zero_grad()
    """,
)
SKIPPED_IN_LOSS = Death(
    "a batch whose loss was too large, and a larger one",
    "activations",
    """
    model = stack(12, 1024)
    optimizer = optimizer_of(model)
    for rows in (2000, 2000, 2000, 2000, 16_000, 2000, 90_000):
        loss = model(torch.empty(rows, 1024, device="cuda")).square().mean()
        try:
            if rows == 16_000:
                megabytes(1 << 14)
            loss.backward()
        except torch.OutOfMemoryError:
            loss = None
        else:
            optimizer.step()
        optimizer.zero_grad()
    """,
)

WORDS = "No room on the accelerator: <b>17 GB</b> were wanted (a wording of tomorrow)"
REWORDED = Death(
    "an error whose words nobody knows",
    "activations",
    f"""
    model = stack(2, 256)
    step(model, optimizer_of(model), 64, 256)
    try:
        megabytes(1 << 14)  # asks
    except torch.OutOfMemoryError:
        raise torch.OutOfMemoryError({WORDS!r}) from None
    """,
)
UNTOLD = Death(
    "an error of which the allocator tells nothing",
    "",
    f"""
    model = stack(2, 256)
    step(model, optimizer_of(model), 64, 256)
    raise torch.OutOfMemoryError({WORDS!r})  # asks
    """,
)

FIRST_STEP = {
    phase: Death(
        f"a first {phase}",
        "activations",
        f"""
    model = stack(5, 4096)
    optimizer = optimizer_of(model)
    for _ in range(3):
        out = model(torch.empty({rows}, 4096, device="cuda"))  # keeps
        out.square().mean().backward()
    """,
    )
    for phase, rows in (("forward", 12288), ("backward", 8320))
}

HELD = Death(
    "who held it",
    "activations",
    """
    model = stack(2, 256)
    optimizer = optimizer_of(model)
    for loss in (2.5, float("nan")):
        step(model, optimizer, 64, 256)
        agent.attach().log(loss=loss)
    time.sleep(0.2)
    agent.attach().log(loss=1.25)
    kept = [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(5)]  # keeps
    model(torch.empty(16 << 20, 256, device="cuda"))  # asks
    """,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_a_record_of_very_many_blocks_is_whole(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    import json

    run_id, code, output = staged.run(MANY, server.url, tmp_path)
    assert code == 0, output[-2000:]
    spoke = json.loads(next(line for line in output.splitlines() if line.startswith('{"caught"')))
    staged.sync(server.url, tmp_path)
    errors, report = staged.report_of(server.url, run_id)
    assert report is not None
    assert [error["survived"] for error in errors["errors"]] == [True, True, None], "nobody knows of the last one yet"
    first = errors["errors"][0]
    record = server.get(f"/oom/{first['record']}")
    assert record["pieces"]["blocks"] >= spoke["alive"] > 100_000
    assert record["seconds"] < 5.0, "0.3 s on a machine that is not busy"
    assert sum(row["bytes"] for row in record["by_category"]) == record["message"]["total_bytes"]
    page = server.http.get(f"/oom/{first['record']}/export")
    assert page.status_code == 200
    assert "a hundred thousand blocks" in page.text


def test_memory_is_listed_by_category_module_and_line(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    """The recording of the first steps was open; in its third step the lines are known. All allocated bytes are in
    it.
    """
    run_id, _, _ = staged.run(HELD, server.url, tmp_path)
    _, report = staged.report_of(server.url, run_id)
    assert report is not None
    weights = (256 * 256 + 256) * 4
    layer = {"bytes": 3 * weights, "parameters": weights, "optimizer": 2 * weights}
    assert report["by_module"] == [{"module": "0.0", **layer}, {"module": "1.0", **layer}]
    by_category = {row["name"]: row["bytes"] for row in report["by_category"]}
    assert (by_category["parameters"], by_category["optimizer"]) == (2 * weights, 4 * weights)
    line = staged.asked_at(replace(HELD, line="# keeps"), str(tmp_path / f"{run_id}.py"))
    kept = [row for row in report["by_site"] if row["line"] == line]
    assert [(row["bytes"], row["count"]) for row in kept] == [(500 << 20, 5)]
    assert sum(row["bytes"] for row in report["by_site"]) == report["message"]["allocated_bytes"]
    assert "Allocations from before the recording, and from its steps without stacks" in report["by_site_words"], (
        "the weights are older"
    )
    rows = {row["name"]: row for row in report["counters"]["rows"]}
    assert rows["allocated_bytes"]["at"] == report["message"]["allocated_bytes"]
    # (as much, where a sample fell between the last allocation and the one that failed)
    assert 0 < rows["allocated_bytes"]["before"] <= rows["allocated_bytes"]["at"]
    assert rows["reserved_bytes"]["at"] == report["message"]["reserved_bytes"]
    assert rows["device_used_bytes"]["at"] == report["message"]["total_bytes"] - report["message"]["free_bytes"]
    assert 0 <= report["counters"]["before_seconds"] < 10
    assert report["loss"] == {
        "name": "loss", "source": "from session.log", "count": 3, "last": 1.25, "last_step": 2, "first_not_finite_step": 2
    }  # fmt: skip
    drawn = server.get(f"/oom/{report['record']}/loss")["figure"]["data"][0]
    x, y = (np.frombuffer(base64.b64decode(drawn[axis]["bdata"]), drawn[axis]["dtype"]) for axis in "xy")
    np.testing.assert_equal(y, [2.5, np.nan, 1.25])
    assert -60 < x[0] < x[1] < x[2] <= 0


@pytest.mark.parametrize("phase", FIRST_STEP)
def test_a_death_in_the_first_step_has_lines_and_modules(
    server: RunningServer, tmp_path: Path, emulated_gpu: None, phase: str
) -> None:
    """No model is known yet, and the sampler may not have looked."""
    death = FIRST_STEP[phase]
    run_id, _, output = staged.run(death, server.url, tmp_path)
    _, report = staged.report_of(server.url, run_id)
    assert report is not None, output[-2000:]
    assert (report["step"], report["phase"]) == (0, phase)
    line = staged.asked_at(replace(death, line="# keeps"), str(tmp_path / f"{run_id}.py"))
    layer = (12288 if phase == "forward" else 8320) * 4096 * 4
    assert [row["category"] for row in report["by_site"] if row["line"] == line and row["bytes"] >= layer] == [
        "activations"
    ]
    (recording,) = server.get(f"/runs/{run_id}/recordings")["recordings"]
    boxes = server.get(f"/recordings/{recording['recording']}/flame", by="module")["figure"]["data"]
    modules = {words.partition("<br>")[0] for box in boxes for words in box["hovertext"]}
    assert {"0.1", "1.1"} <= modules


def test_a_batch_that_was_skipped_is_no_complete_step(
    server: RunningServer, tmp_path: Path, emulated_gpu: None
) -> None:
    """Its need was that of the part that had been done: two micro-batches of 45,000 rows were called enough."""
    outcome = staged.staged(SKIPPED, server.url, tmp_path)
    assert not outcome.wrong and outcome.tried is not None
    in_loss = staged.staged(SKIPPED_IN_LOSS, server.url, tmp_path).report
    assert in_loss is not None
    assert "90,000" not in in_loss["sentence"], "of how many times what?"


def test_unknown_words_are_kept(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    """The numbers are the allocator's; the text is kept and not parsed."""
    run_id, code, output = staged.run(REWORDED, server.url, tmp_path)
    errors, report = staged.report_of(server.url, run_id)
    assert code == 1
    assert report is not None
    assert [(one["error_type"], one["text"], one["survived"]) for one in errors["errors"]] == [
        ("OutOfMemoryError", WORDS, False)
    ]
    assert (report["message"]["kind"], report["message"]["text"]) == ("unknown", WORDS)
    assert (report["message"]["asked_bytes"], report["cause"]) == (1 << 34, REWORDED.cause)
    assert report["sentence"] in output
    assert f"/runs/{run_id}/oom" in output


def test_an_unknown_pytorch_error_is_recorded(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    run_id, _, output = staged.run(UNTOLD, server.url, tmp_path)
    errors, report = staged.report_of(server.url, run_id)
    assert report is not None, "by its class it is one"
    assert [one["survived"] for one in errors["errors"]] == [False]
    assert (report["message"]["kind"], report["message"]["text"]) == ("unknown", WORDS)
    assert (report["cause"], report["message"]["asked_bytes"], report["remedies"]) == (None, None, []), (
        "nothing is guessed"
    )
    assert report["culprit"]["line"] == staged.asked_at(UNTOLD, str(tmp_path / f"{run_id}.py"))
    assert report["sentence"] in output


def test_other_bytes_are_refused() -> None:
    for data in (b"", b"x" * 100, b"\\x78\\x9c\\x03\\x00\\x00\\x00\\x00\\x01"):
        with pytest.raises(BadOomRecord):
            unpack(data)

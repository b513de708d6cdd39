"""The loss from the wire to the pages: kept as it was sent, thinned without losing its extremes, NaN said to be NaN."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from running import RunningServer
from wire_maker import SECOND, Agent

from vramscope.protocol import messages
from vramscope_server.__main__ import main

NAN = math.nan


def test_a_loss_is_kept_to_the_bit_and_what_no_json_can_tell_is_told_in_words(server: RunningServer) -> None:
    agent = Agent()
    values = [2.302585092994046, 1e-300, -0.5, NAN, math.inf, -math.inf, None, 1.7976931348623157e308]
    server.send(agent, agent.steps(8), agent.scalars(loss=values, accuracy=[None, None, 0.25, *[None] * 5]))
    answer = server.get(f"/runs/{agent.run}/series", stream="scalars", names="loss,accuracy", x="step", points=10)
    assert answer["x_values"] == list(range(1, 9))
    assert answer["series"]["loss"]["value"] == [*values[:3], "nan", "inf", "-inf", None, values[7]]
    assert answer["series"]["accuracy"]["value"] == [None, None, 0.25, *[None] * 5]
    assert server.get(f"/runs/{agent.run}")["ranks"][0]["scalars"] == ["accuracy", "loss"]


def test_thinned_it_has_its_lowest_and_highest_and_chunks_are_merged(server: RunningServer) -> None:
    agent = Agent()
    for part in range(40):  # as a live agent sends it: chunks of a few rows, merged sixteen by sixteen
        rows = [5.0 - (part * 50 + i) / 1000 for i in range(50)]
        if part == 20:
            rows[7], rows[8] = -40.0, 90.0
        server.send(agent, agent.scalars(loss=rows, first=part * 50 + 1, at=part * 5.0))
    answer = server.get(f"/runs/{agent.run}/series", stream="scalars", names="loss", x="step", points=100)
    assert (answer["rows"], answer["envelope"]) == (2000, True)
    loss = answer["series"]["loss"]
    assert (min(loss["min"]), max(loss["max"])) == (-40.0, 90.0)
    calm = [low <= mean <= high for low, mean, high in zip(loss["min"], loss["mean"], loss["max"], strict=True)]
    assert all(calm) and loss["mean"][0] == pytest.approx(sum(5.0 - i / 1000 for i in range(20)) / 20)
    (line,) = [
        trace
        for trace in server.get(f"/runs/{agent.run}/figures/loss", points=100)["figure"]["data"]
        if trace["meta"]["kind"] == "line"
    ]
    assert line["meta"]["meaning"] == "from session.log"


def test_what_the_user_tells_comes_before_what_backward_began_at_and_they_are_never_mixed(
    server: RunningServer,
) -> None:
    agent = Agent()
    server.send(agent, agent.scalars(backward_loss=[4.0, 3.0, 2.0]), agent.scalars(trainer_loss=[3.0], first=3))
    loss = server.get(f"/runs/{agent.run}")["loss"]
    assert (loss["name"], loss["source"]) == ("backward_loss", "the tensor on which backward() was called")
    assert (loss["first"], loss["last"], loss["last_step"], loss["count"]) == (4.0, 2.0, 3, 3)
    server.send(agent, agent.scalars(loss=[0.5], first=4, at=1.0))
    loss = server.get(f"/runs/{agent.run}")["loss"]
    assert (loss["name"], loss["first"], loss["final"], loss["count"]) == ("loss", 0.5, 0.5, 1)
    shown = server.get(f"/runs/{agent.run}/figures/loss", x="step")
    assert shown["window"]["rows"] == {"scalars": 1}


def test_late_rows_do_not_change_where_the_loss_ended(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.scalars(loss=[2.0] * 50, first=51, at=5.0))
    server.send(agent, agent.scalars(loss=[9.0] * 50, first=1))
    loss = server.get(f"/runs/{agent.run}")["loss"]
    assert (loss["final"], loss["final_of"], loss["first"], loss["last_step"]) == (2.0, 10, 9.0, 100)


def test_a_run_whose_loss_became_nan_says_so_everywhere(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    good, lost, silent = (Agent(name=name) for name in ("fp32", "fp16", "silent"))
    server.send(good, good.steps(20), good.scalars(backward_loss=[3.0 - i / 10 for i in range(20)]), good.ended())
    server.send(lost, lost.steps(20), lost.scalars(backward_loss=[3.0] * 12 + [math.inf] + [NAN] * 7), lost.ended())
    server.send(silent, silent.steps(20), silent.ended())
    runs = f"{good.run},{lost.run},{silent.run}"
    one, two, three = server.get("/compare", runs=runs)["rows"]
    assert one["final_loss"] == pytest.approx((1.1 + 1.2) / 2) and (one["first_loss"], one["loss_of"]) == (3.0, 2)
    assert (two["final_loss"], two["loss_words"]) == (None, "infinite from step 13")
    assert [r["text"] for r in two["reasons"] if r["kind"] == "loss"] == [
        "the loss is not finite from step 13 on: the model does not learn"
    ]
    assert three["loss_source"] is None
    figure = server.get("/compare/figures/loss_over_steps", runs=runs)["figure"]
    marks = [trace for trace in figure["data"] if trace["meta"]["kind"] == "marker"]
    assert [(_numbers(trace["x"]), _numbers(trace["y"])) for trace in marks] == [([13.0], [3.0])]
    result = " ".join(note["text"] for note in figure["layout"]["annotations"])
    assert "fp16: first infinite in step 13, 8 times in this window" in result and "silent: unknown loss" in result
    for form, cell in (("markdown", "| infinite from step 13 |"), ("latex", "& infinite from step 13")):
        assert cell in server.http.get("/compare/table", params={"runs": runs, "format": form}).text
    rows = list(
        csv.DictReader(io.StringIO(server.http.get("/compare/table", params={"runs": runs, "format": "csv"}).text))
    )
    assert [row["final_loss"] for row in rows[1:]] == ["", ""] and float(rows[0]["final_loss"]) == one["final_loss"]
    assert main(["show", lost.run, "--server", server.url]) == 0
    assert "first 3; first inf in step 13, 8 in total; source: the tensor on which backward() was called" in " ".join(
        capsys.readouterr().out.split()
    )


def _numbers(array: Any) -> list[float]:
    """As Plotly's JSON carries them: a list, or base64."""
    if isinstance(array, list):
        return array
    return np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]).tolist()


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"rows": 2}, "scalars[0].time_ns", "16 bytes, 8 for each of 2 rows"),
        ({"columns": {"loss": b"1234"}}, "scalars[0].columns.loss", "8 bytes, 8 for each of 1 rows"),
        ({"columns": {"step": bytes(8)}}, "scalars[0].columns", "another name: step is not a column"),
        ({"columns": {"no name": bytes(8)}}, "scalars[0].columns", "matching regex"),
        ({"columns": {}}, "scalars[0].columns", "length >= 1"),
        ({"time_ns": b"\x7f" + b"\xff" * 7}, "scalars[0].time_ns", "nanoseconds since 1970"),
        ({"step": b"\xf0" + b"\xff" * 7}, "scalars[0].step", "whole numbers from 0"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_stored(
    server: RunningServer, change: dict[str, object], field: str, expected: str
) -> None:
    agent = Agent()
    batch = msgspec.to_builtins(agent.batch(agent.scalars(loss=[1.0])), builtin_types=(bytes,))
    batch["scalars"][0] |= change
    answer = server.post(messages.encode(batch))
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["field"].startswith(field) and expected in problem["expected"]
    assert server.http.get(f"/runs/{agent.run}").status_code == 404


def test_a_series_that_the_run_does_not_tell_is_refused_by_name(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.scalars(loss=[1.0]))
    answer = server.http.get(f"/runs/{agent.run}/series", params={"stream": "scalars", "names": "accuracy"})
    assert answer.status_code == 422 and answer.json()["expected"] == "some of loss"


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
def test_postgresql_keeps_it_too(
    start_server: Callable[..., RunningServer], postgres: str, migrated_postgres: str
) -> None:
    import psycopg

    with psycopg.connect(postgres.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE scalars TEMPLATE {migrated_postgres}")
    server = start_server(database=f"{postgres}/scalars")
    agent = Agent(start_ns=1_700_000_000 * SECOND)
    server.send(agent, agent.scalars(loss=[-1.5, NAN, 2.0]), sent_ns=agent.start_ns + SECOND)
    answer = server.get(f"/runs/{agent.run}/series", stream="scalars", names="loss", x="step")
    assert answer["series"]["loss"]["value"] == [-1.5, "nan", 2.0]

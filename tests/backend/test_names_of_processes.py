"""Names of other processes in a run of several ranks."""

from __future__ import annotations

from running import RunningServer
from wire_maker import GIB, Agent

from vramscope.protocol import messages
from vramscope.protocol.other_process import EVENT
from vramscope.protocol.series import OTHER_PROCESSES
from vramscope_server.store.other_processes import MOST_READ


def report(agent: Agent, pid: int, used: int, **fields: str) -> messages.Event:
    data = {"pid": pid, "device": 0, "used_bytes": used, "peak_bytes": used, "series": OTHER_PROCESSES[0], **fields}
    return messages.Event(time_ns=agent.start_ns, kind=EVENT, step=1, data=data)


def test_many_reports_of_another_rank_hide_no_name_in_the_chart(server: RunningServer) -> None:
    quiet = Agent(world_size=2)
    busy = Agent(run=quiet.run, rank=1, world_size=2)
    samples = {OTHER_PROCESSES[0]: GIB}
    server.send(quiet, quiet.samples(**samples), report(quiet, 7, GIB, command="python rollout.py"))
    server.send(busy, busy.samples(**samples), *(report(busy, 8, at) for at in range(1, MOST_READ + 1)))
    for rank, name in ((0, "python rollout.py (pid 7)"), (1, "pid 8")):
        figure = server.get(f"/runs/{quiet.run}/figures/processes", rank=rank)["figure"]
        [drawn] = [trace for trace in figure["data"] if trace["meta"]["role"] == "other-process-1"]
        assert drawn["name"] == name

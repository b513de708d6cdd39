"""One run in full, as its page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope.protocol.other_process import EVENT
from vramscope_server.answers.run_detail import (
    AgentOverhead,
    AttachedDevice,
    CategoryMemory,
    Fragmentation,
    Loss,
    RankRow,
    ReservedParts,
    RunEvent,
    RunInFull,
    RunSpan,
)
from vramscope_server.store.jobs import jobs_of
from vramscope_server.store.leaks import merge_leaks
from vramscope_server.store.list_row import is_emulated, run_row, seconds
from vramscope_server.store.other_processes import other_processes
from vramscope_server.store.rank_summary import decode_summary
from vramscope_server.store.run_queries import load_scans
from vramscope_server.store.run_states import OPEN, display_skew_ns
from vramscope_server.store.scalars import rank_loss
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import events, ranks, sessions

MAX_EVENTS: Final = 1000


def run_in_full(connection: Connection, run: StoredRun) -> RunInFull:
    """Everything that ``show RUN --json`` and the run's page need."""
    rows = _ranks(connection, run)
    skews = {row["rank"]: int((row["clock_skew_seconds"] or 0) * 1e9) for row in rows}
    happened = _events(connection, run, skews)
    leaks = None
    if run.leaks is not None:
        scans = {rank: looked.scan for rank, looked in load_scans(connection, run).items()}
        leaks = merge_leaks(scans, run.peak_allocated_bytes)
    shift_ns = display_skew_ns(skews.get(rows[0]["rank"])) if rows else 0
    row = run_row(run)
    return {
        "run_id": row["run_id"],
        "project": row["project"],
        "name": row["name"],
        "tags": row["tags"],
        "note": row["note"],
        "state": row["state"],
        "device": row["device"],
        "capacity_bytes": row["capacity_bytes"],
        "world_size": row["world_size"],
        "ranks_reporting": row["ranks_reporting"],
        "steps": row["steps"],
        "started_seconds": row["started_seconds"],
        "last_seen_seconds": row["last_seen_seconds"],
        "ended_seconds": row["ended_seconds"],
        "peak_allocated_bytes": row["peak_allocated_bytes"],
        "peak_reserved_bytes": row["peak_reserved_bytes"],
        "sampled_allocated_bytes": row["sampled_allocated_bytes"],
        "sampled_reserved_bytes": row["sampled_reserved_bytes"],
        "lower_bound_steps": row["lower_bound_steps"],
        "peak_step": row["peak_step"],
        "step_seconds_median": row["step_seconds_median"],
        "fragmentation_fraction": row["fragmentation_fraction"],
        "unusable_bytes": row["unusable_bytes"],
        "pinned": row["pinned"],
        "baseline": row["baseline"],
        "error_type": row["error_type"],
        "error_line": row["error_line"],
        "leaks": leaks,
        "leaked_bytes": row["leaked_bytes"],
        "worst_leak": row["worst_leak"],
        "graphs_alive": row["graphs_alive"],
        "recordings": row["recordings"],
        "profiles": row["profiles"],
        "oom_records": row["oom_records"],
        "techniques": run.techniques,
        "out_of_memory": None
        if run.out_of_memory is None
        else [event for event in happened if event["kind"] == "out_of_memory"],
        "sparkline": row["sparkline"],
        "peak_phase": run.peak_phase,
        "peak_categories": _every_category(run.peak_categories),
        "fragmentation": _fragmentation(connection, run),
        "leak_count": run.leaks,
        "out_of_memory_count": run.out_of_memory,
        "findings": run.findings,
        "allocator_settings": run.allocator_settings,
        "agent_overhead": _overhead(run),
        "dropped_samples": _dropped_samples(connection, run),
        "foreign_reset_steps": _most_resets(rows),
        "framework": run.framework,
        "config": run.config,
        "command": run.command,
        "git_commit": run.git_commit,
        "loss": next((row["loss"] for row in rows if row["loss"] is not None), None),
        "trained_seconds": _trained_seconds(connection, run),
        "ranks": rows,
        "other_processes": other_processes(connection, run, rows, skews),
        "events": happened,
        "window": RunSpan(
            first_seconds=_shifted(run.first_time_ns, shift_ns),
            last_seconds=_shifted(run.last_time_ns, shift_ns),
            first_step=run.first_step,
            last_step=run.last_step,
        ),
        "wire": messages.WIRE_VERSION,
    }


def _shifted(time_ns: int | None, shift_ns: int) -> float | None:
    return seconds(time_ns and time_ns - shift_ns)


def _events(connection: Connection, run: StoredRun, skews: dict[int, int]) -> list[RunEvent]:
    """The newest events, in order of time by the server's clock."""
    shown = sa.select(events).where(events.c.run_key == run.key, events.c.kind != EVENT)
    newest = shown.order_by(events.c.key.desc()).limit(MAX_EVENTS)
    found = [
        RunEvent(
            time_seconds=seconds(row["time_ns"] - display_skew_ns(skews.get(row["rank"]))),
            rank=row["rank"],
            kind=row["kind"],
            step=row["step"],
            data=row["data"],
        )
        for row in connection.execute(newest).mappings()
    ]
    return sorted(found, key=lambda event: float(event["time_seconds"] or 0))


def _fragmentation(connection: Connection, run: StoredRun) -> Fragmentation | None:
    known = (run.inactive_split_bytes, run.reserved_minus_allocated_bytes, run.unusable_bytes, run.never_needed_bytes)
    if all(value is None for value in known):
        return None
    return Fragmentation(
        inactive_split_bytes=run.inactive_split_bytes,
        reserved_minus_allocated_bytes=run.reserved_minus_allocated_bytes,
        unusable_bytes=run.unusable_bytes,
        never_needed_bytes=run.never_needed_bytes,
        parts=_parts(connection, run),
    )


def _overhead(run: StoredRun) -> AgentOverhead | None:
    overhead = run.overhead
    if not overhead:
        return None
    return AgentOverhead(
        seconds_per_step=overhead["seconds_per_step"],
        fraction=overhead["fraction"],
        resolvable=overhead["resolvable"],
        noise_fraction=overhead["noise_fraction"],
        hook_seconds=overhead["hook_seconds"],
        sampler_cpu_seconds=overhead["sampler_cpu_seconds"],
    )


def _trained_seconds(connection: Connection, run: StoredRun) -> float | None:
    """Time from attach to end, over all sessions of the lowest rank, without the gaps between them."""
    lowest = sa.select(sa.func.min(sessions.c.rank)).where(sessions.c.run_key == run.key).scalar_subquery()
    query = sa.select(sessions.c.started_ns, sessions.c.ended_ns, sessions.c.last_seen_ns, sessions.c.skew_ns)
    query = query.where(sessions.c.run_key == run.key, sessions.c.rank == lowest).order_by(sessions.c.started_ns)
    total, until = 0, 0
    for row in connection.execute(query):
        shift = display_skew_ns(row.skew_ns)
        began = max(int(row.started_ns) - shift, until)
        until = max(until, int(row.last_seen_ns) if row.ended_ns is None else int(row.ended_ns) - shift)
        total += max(0, until - began)
    return seconds(total) if until else None


def _dropped_samples(connection: Connection, run: StoredRun) -> int | None:
    """Number of rows that the agents dropped; None while one of the sessions has not reported it."""
    query = sa.select(sessions.c.state, sessions.c.dropped_samples, sessions.c.overhead)
    dropped = 0
    for session in connection.execute(query.where(sessions.c.run_key == run.key)):
        reported = (session.overhead or {}).get("dropped_samples") is not None
        if not reported and session.state in OPEN:
            return None
        dropped += int(session.dropped_samples)
    return dropped


def _parts(connection: Connection, run: StoredRun) -> ReservedParts | None:
    """Parts of the rank whose unusable bytes the run's row has: see ``run_from_ranks.aggregate``."""
    found = connection.execute(sa.select(ranks.c.summary).where(ranks.c.run_key == run.key)).scalars()
    summaries = [summary for summary in map(decode_summary, found) if summary.unusable_reserved_bytes is not None]
    if not summaries:
        return None
    most = max(summaries, key=lambda summary: summary.unusable_reserved_bytes or 0)
    return most.parts


def _most_resets(rows: Sequence[RankRow]) -> int | None:
    """The number of the rank that has most."""
    return max((value for row in rows if (value := row["foreign_reset_steps"]) is not None), default=None)


def _ranks(connection: Connection, run: StoredRun) -> list[RankRow]:
    joined = (
        sa.select(ranks.c.rank, ranks.c.summary, sessions)
        .join(sessions, sessions.c.id == ranks.c.session_id)
        .where(ranks.c.run_key == run.key)
        .order_by(ranks.c.rank)
    )
    rows = []
    for row in connection.execute(joined).mappings():
        attached = row["attached"] or {}
        summary = decode_summary(row["summary"])
        rows.append(
            RankRow(
                rank=row[ranks.c.rank],
                host=attached.get("host"),
                pid=attached.get("pid"),
                state=row["state"],
                devices=[_device(device) for device in attached.get("devices", [])],
                python=attached.get("python"),
                torch=attached.get("torch"),
                cuda=attached.get("cuda"),
                hip=attached.get("hip"),
                driver=attached.get("driver"),
                agent_version=attached.get("agent_version"),
                host_total_bytes=attached.get("host_total_bytes"),
                host_memory=None if summary.host_memory is None else summary.host_memory.answer,
                jobs=jobs_of(attached),
                clock_skew_seconds=seconds(row["skew_ns"]),
                steps=summary.steps,
                peak_allocated_bytes=summary.measured_peak_bytes,
                peak_reserved_bytes=summary.measured_reserved_bytes,
                peak_process_device_bytes=summary.process_device_bytes,
                peak_device_used_bytes=summary.device_used_bytes,
                peak_other_processes_bytes=summary.other_processes_bytes,
                foreign_reset_steps=summary.foreign_reset_steps,
                lower_bound_steps=summary.lower_bound_steps,
                loss=_computed(rank_loss(summary.scalars), attached.get("devices", [])),
                scalars=sorted(summary.scalars),
                last_seen_seconds=seconds(row["last_seen_ns"]),
                error_type=row["error_type"],
                error_line=row["error_line"],
            )
        )
    return rows


def _computed(loss: Loss | None, devices: Sequence[dict[str, Any]]) -> Loss | None:
    """The loss; None if it is 0 because an emulated GPU computes nothing."""
    if loss is None or not any(is_emulated(device) for device in devices):
        return loss
    return None if loss["first"] == loss["last"] == loss["final"] == 0 else loss


def _device(device: dict[str, Any]) -> AttachedDevice:
    return AttachedDevice(
        index=device["index"],
        name=device.get("name"),
        uuid=device.get("uuid"),
        total_bytes=device.get("total_bytes"),
        emulated=is_emulated(device),
    )


def _every_category(stored: CategoryMemory | None) -> CategoryMemory | None:
    """Return the categories of today. Runs of an earlier agent have fewer."""
    if stored is None:
        return None
    return {
        "parameters": stored["parameters"],
        "gradients": stored["gradients"],
        "optimizer": stored["optimizer"],
        "buffers": stored["buffers"],
        "activations": stored["activations"],
        "workspaces": stored.get("workspaces"),
        "other": stored["other"],
    }

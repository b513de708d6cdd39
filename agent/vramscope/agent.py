"""Public functions: ``from vramscope import agent; agent.attach(trainer)``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vramscope.process.gc_pause import collect_youngest, collector_paused

_import_began_ns = time.thread_time_ns()
with collector_paused():  # the many objects of the modules would cause a collection of the whole process, of 0.1 s
    from vramscope.guard import guarded
    from vramscope.process import terminal
    from vramscope.session import Session
    from vramscope.settings import Settings

_import_ns = time.thread_time_ns() - _import_began_ns
"""Processor time of the import. Zero once a session has counted it."""

__all__ = ["Session", "attach", "detach"]


def attach(
    target: object = None,
    *more: object,
    server: str | None = None,
    project: str | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    interval_ms: int | None = None,
    phases: bool | Literal["every"] | None = None,
    detail: Literal["auto", "every", "peaks"] | None = None,
    budget: float | None = None,
    leaks: bool | None = None,
    windows: bool | None = None,
    profile: bool | None = None,
    techniques: bool | None = None,
    loss: bool | None = None,
    run_id: str | None = None,
    resume: bool | None = None,
    token: str | None = None,
) -> Session:
    """Watch this process's training from now on, and send what is measured to the server.

    Never raises and never waits for the network. An argument that is left out comes from its environment variable, else from
    its default (docs/settings.md).

    Args:
        target: What trains: a transformers Trainer, a lightning Trainer, an accelerate Accelerator, a torch.nn.Module, a torch
            optimizer, or nothing. Without a target the training is found through PyTorch's global hooks.
        more: More of what trains, such as the model's optimizer or a second model.
        server: Address of the server (VRAMSCOPE_SERVER, http://127.0.0.1:8265).
        project: Project of the run.
        name: Name of the run.
        tags: Tags of the run.
        config: The user's own settings: a mapping, a dataclass or an argparse.Namespace. Secrets are removed.
        interval_ms: Milliseconds between two samples (100).
        phases: False: measure whole steps only, at a quarter of the cost. True: phases too, as long as they cost less than 2 %
            of the time. "every": phases in every step.
        detail: "auto": as much as the budget allows. "every": every step in full. "peaks": only the exact peak of each step. An
            argument of one part, such as leaks, wins.
        budget: Share of the time that watching may take (0.02). Where steps are so short that it would take more, most steps
            are not watched, and one exact peak covers a group of them.
        leaks: False: no scans for leaks.
        windows: False: no recordings of allocator history.
        profile: False: a step is profiled only when somebody asks for it.
        techniques: False: techniques and pitfalls are not detected.
        loss: False: the loss is not read.
        run_id: Id of the run, 8 to 40 characters of 0-9 and a-z.
        resume: True: continue the run with this id.
        token: Token with the role ``write``.

    Returns:
        The session. Attached again without a target, the running session is returned. Attached again with a target, a session
        that began without one (by ``vramscope run``, say) takes it over; any other session ends and a new run begins.
    """
    given = {
        "server": server,
        "project": project,
        "run_name": name,
        "tags": tags,
        "interval_ms": interval_ms,
        "phases": phases,
        "detail": detail,
        "budget": budget,
        "leaks": leaks,
        "windows": windows,
        "profile": profile,
        "techniques": techniques,
        "loss": loss,
        "run_id": run_id,
        "resume": resume,
        "token": token,
    }
    session = _live
    if session is not None and session.live:
        if name is None and run_id is None and (target is None or session.waits_for_target):
            session.adopt(target, config)
        else:
            detach()
            session = _start(target, given, config, session)
    else:
        session = _start(target, given, config)
    for one in more if session.live else ():
        session.adopt(one, None)
    return session


def detach() -> None:
    """End the running session as finished. Does nothing if none is running."""
    if _live is not None:
        _live.close()


_live: Session | None = None


def _start(
    target: object, given: dict[str, Any], config: Mapping[str, Any] | None, before: Session | None = None
) -> Session:
    """Start a new session. ``before`` is the session that ended for it."""
    global _live, _import_ns
    began_ns = time.thread_time_ns()
    session = Session()
    with guarded("attach"), collector_paused():
        try:
            settings, unsendable = Settings.for_training(**given)
        except ValueError as wrong:
            terminal.say(f"not attached. {wrong}. Your training goes on unwatched.")
            return session
        if settings.disabled:
            return session
        if "torch" not in sys.modules:
            import torch  # noqa: F401 - whoever attaches is about to use it; the guard reports a missing torch

            began_ns = time.thread_time_ns()  # the program would have imported it anyway
        session.open(target, settings, config, before, sends=not unsendable)
        _live = session
        if unsendable:
            later = "`vramscope sync --server URL` sends it"
            terminal.say_once(
                unsendable,
                f"{unsendable}. Your training is watched: what is seen stays in {settings.spool_dir}; {later}.",
            )
    with guarded("attach"):
        collect_youngest()
        session.count_start(time.thread_time_ns() - began_ns + _import_ns)
        _import_ns = 0
    return session

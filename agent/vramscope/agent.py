"""The one line: ``from vramscope import agent; agent.attach(trainer)``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vramscope.guard import guarded
from vramscope.integrations.registry import ACCEPTED
from vramscope.process import terminal
from vramscope.session import Session
from vramscope.settings import Settings

__all__ = ["Session", "attach", "detach"]


def attach(
    target: object = None,
    *,
    server: str | None = None,
    project: str | None = None,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    interval_ms: int | None = None,
    phases: bool | Literal["every"] | None = None,
    leaks: bool | None = None,
    windows: bool | None = None,
    profile: bool | None = None,
    techniques: bool | None = None,
    loss: bool | None = None,
    run_id: str | None = None,
    resume: bool | None = None,
    token: str | None = None,
) -> Session:
    """Watch this process's training from now on, and send what is seen to the server.

    target       what trains: {accepted}. With nothing, or something unknown, the training is
                 found through PyTorch's global hooks.
    server       address of the server (VRAMSCOPE_SERVER, http://127.0.0.1:8265)
    project, name, tags, config   how the run is called and filed; secrets in ``config`` (a mapping, a dataclass, or what
                 argparse gives) are hidden before they are sent
    interval_ms  milliseconds between two samples (100)
    phases       False: measure whole steps only, at a quarter of the cost; "every": phases in every step, however short,
                 where True leaves some of the steps alone if they are shorter than some milliseconds
    leaks        False: do not look for graphs and tensors that outlive their step
    windows      False: do not record windows of allocator history
    profile      False: profile only steps for which somebody asks at the page
    techniques   False: do not look how it is trained, nor for known traps
    loss         False: do not look at the loss
    run_id, resume   go on with an existing run

    Never raises and never waits for the network. Attached twice: without a target the session that runs is given back;
    with one, a session that was begun without (by ``vramscope run``, say) takes it over, any other ends and a new run
    begins.
    """
    given = {
        "server": server,
        "project": project,
        "run_name": name,
        "tags": tags,
        "interval_ms": interval_ms,
        "phases": phases,
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
            return session
        detach()
        return _start(target, given, config, session)
    return _start(target, given, config)


if attach.__doc__:
    attach.__doc__ = attach.__doc__.replace("{accepted}", ACCEPTED)


def detach() -> None:
    """End the session that runs, as finished; nothing happens where none runs."""
    if _live is not None:
        _live.close()


_live: Session | None = None


def _start(
    target: object, given: dict[str, Any], config: Mapping[str, Any] | None, before: Session | None = None
) -> Session:
    """A session of its own; ``before``: the one that ended for it."""
    global _live
    session = Session()
    with guarded("attach"):
        try:
            settings, unsendable = Settings.for_training(**given)
        except ValueError as wrong:
            terminal.say(f"not attached. {wrong}. Your training goes on unwatched.")
            return session
        if settings.disabled:
            return session
        if "torch" not in sys.modules:
            import torch  # noqa: F401 - whoever attaches is about to use it; a missing torch is told by the guard
        session.open(target, settings, config, before, sends=not unsendable)
        _live = session
        if unsendable:
            later = "`vramscope sync --server URL` sends it"
            terminal.say_once(
                unsendable,
                f"{unsendable}. Your training is watched: what is seen stays in {settings.spool_dir}; {later}.",
            )
    return session

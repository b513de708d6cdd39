"""A record as the messages that bring it to the server: the event that tells of it, and the box in pieces."""

from __future__ import annotations

from vramscope.protocol import messages
from vramscope.protocol.oom_record import BYSTANDER_EVENT, EVENT, OWNERS, BlackBox, pack


def messages_of(box: BlackBox, asked_by: str = "") -> list[messages.Message]:
    """To be sent in one batch. Some 15 ms of compression for 100,000 blocks.

    asked_by   of a bystander: how it knew that another rank had run out
    """
    data = pack(box)
    size = messages.MAX_PIECE_BYTES
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    own = next((frame for frame in box.stack if frame.own), None)
    about: dict[str, messages.Scalar] = {
        "device": box.device,
        "step": box.step,
        "phase": box.phase,
        "time_ns": box.time_ns,
        "asked_bytes": box.asked_bytes,
        "seen_by": box.seen_by,
        "file": None if own is None else own.file,
        "line": None if own is None else own.line,
        "bytes": len(data),
        "module": box.module,
        "total_bytes": box.total_bytes,
        "free_bytes": box.free_bytes,
        "allocated_bytes": box.counters.get("allocated_bytes.all.current"),
        "reserved_bytes": box.counters.get("reserved_bytes.all.current"),
        **{f"{owner.replace(' ', '_')}_bytes": box.owned_bytes.get(owner) for owner in OWNERS},
    }
    is_bystander = box.seen_by == "bystander"
    if is_bystander:
        about["asked_by"] = asked_by
    told: dict[str, messages.Scalar] = {
        "record": box.record,
        **{
            name: about[name]
            for name in ("device", "free_bytes", "asked_by" if is_bystander else "asked_bytes", "phase", "file", "line")
        },
    }
    return [
        messages.Event(time_ns=box.time_ns, kind=BYSTANDER_EVENT if is_bystander else EVENT, step=box.step, data=told),
        *(
            messages.Piece(
                artifact=box.record,
                kind="bystander" if is_bystander else "oom",
                number=number,
                pieces=len(parts),
                about=about,
                data=part,
            )
            for number, part in enumerate(parts)
        ),
    ]

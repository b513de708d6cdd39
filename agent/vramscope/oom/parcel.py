"""A record as the messages that bring it to the server: the event that tells of it, and the box in pieces."""

from __future__ import annotations

from vramscope import wire
from vramscope.black_box import EVENT, BlackBox, pack


def messages_of(box: BlackBox) -> list[wire.Message]:
    """To be sent in one batch. Some 15 ms of compression for 100,000 blocks."""
    data = pack(box)
    size = wire.MAX_PIECE_BYTES
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    own = next((frame for frame in box.stack if frame.own), None)
    about: dict[str, wire.Scalar] = {
        "device": box.device,
        "step": box.step,
        "phase": box.phase,
        "time_ns": box.time_ns,
        "asked_bytes": box.asked_bytes,
        "seen_by": box.seen_by,
        "file": None if own is None else own.file,
        "line": None if own is None else own.line,
        "bytes": len(data),
    }
    told: dict[str, wire.Scalar] = {
        "record": box.record,
        "free_bytes": box.free_bytes,
        **{name: about[name] for name in ("device", "asked_bytes", "phase", "file", "line")},
    }
    return [
        wire.Event(time_ns=box.time_ns, kind=EVENT, step=box.step, data=told),
        *(
            wire.Piece(artifact=box.record, kind="oom", number=number, pieces=len(parts), about=about, data=part)
            for number, part in enumerate(parts)
        ),
    ]

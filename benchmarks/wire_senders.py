"""Ranks that speak the wire format without a training: many in one thread, over connections that stay open."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from ingest import training_samples

from vramscope.protocol import messages, series

SAMPLES = {name: values.astype("<i8") for name, values in training_samples(4096).items()}
COLUMNS = len(series.SAMPLES)


@dataclass
class Sent:
    """What was acknowledged, and what was not taken at once."""

    posts: int = 0
    rows: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)


class Rank:
    """One rank: numbers its batches, and follows the rhythm of the server."""

    def __init__(self, url: str, run: str, rank: int, world_size: int) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self.run = run
        self._session = f"{run}s{rank:06d}"
        self._rank = rank
        self._sequence = 0
        self._row = 0
        self._start_ns = time.time_ns()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.every_seconds = 0.0
        device = messages.Device(index=0, name="NVIDIA H100 80GB HBM3", total_bytes=80 << 30)
        self._attached = messages.Attached(
            rank=rank, world_size=world_size, start_ns=self._start_ns, devices=[device], project="benchmark", name=run,
            host=f"node{rank // 8}", pid=1000 + rank, framework="loop", python="3.11", torch="2.13.0",
            cuda="13.0", driver="580.1", allocator_settings="", agent_version="0",
        )  # fmt: skip

    async def post(self, rows: int, sent: Sent) -> None:
        """Send rows that end now, until they are acknowledged."""
        body = self._body(rows)
        head = (
            f"POST /api/v1/batches HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {messages.CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        while True:
            begin = time.perf_counter()
            status, answer = await self._exchange(head + body)
            if status == 200:
                break
            if status not in (0, 503):
                raise SystemExit(f"a batch was refused: {status} {answer[:300]!r}")
            sent.refused += 1
            await asyncio.sleep(1.0)
        sent.latencies.append(time.perf_counter() - begin)
        sent.posts += 1
        sent.rows += rows
        self.every_seconds = messages.decode_ack(answer).send_every_ms / 1000

    async def run_at(self, hertz: float, until: float, sent: Sent) -> None:
        """One row each period until then; each batch has those since the one before."""
        period = 1 / hertz
        start = time.monotonic() + self._rank % 100 / 100 * period
        await asyncio.sleep(start - time.monotonic())
        told = 0
        while time.monotonic() < until:
            due = int((time.monotonic() - start) / period) + 1
            if due > told:
                await self.post(due - told, sent)
                told = due
            await asyncio.sleep(max(period, self.every_seconds))

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self._streams = None
            return 0, b""
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length"))
        return int(lines[0].split()[1]), await reader.readexactly(length)

    def _body(self, rows: int) -> bytes:
        self._sequence += 1
        at = self._row % (4096 - rows)
        numbers = np.arange(self._row, self._row + rows)
        self._row += rows
        columns: dict[str, Any] = {name: values[at : at + rows].tobytes() for name, values in SAMPLES.items()}
        columns["time_ns"] = (self._start_ns + numbers * 100_000_000).astype("<i8").tobytes()
        columns["step"] = numbers.astype("<i8").tobytes()
        first = [self._attached] if self._sequence == 1 else []
        block = messages.Block(stream="samples", device=0, rows=rows, columns=columns)
        batch = messages.Batch(
            wire=messages.WIRE_VERSION, session=self._session, run=self.run, rank=self._rank, sequence=self._sequence,
            sent_ns=time.time_ns(), messages=[*first, block],
        )  # fmt: skip
        return messages.encode(batch)

"""The real allocator, asked: runs scripts of operations on it, each in a process forked from one that has only imported torch.

    python tests/simulator/oracle.py        # reads pickled jobs from stdin, writes pickled answers to stdout

Needs torch and nothing of ours, so that any version's interpreter can run it.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import sys
import tempfile
import time
from typing import Any

import torch

ALLOC, FREE, FREE_REQUESTED, FREE_COMPLETED, EMPTY_CACHE, POOL_FREEABLE, EMPTY_POOL = range(7)
NESTED = (
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "inactive_split",
    "inactive_split_bytes",
)
PEAKS = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")


def statistics(s: dict[str, Any] | None = None) -> tuple[int, ...]:
    """In the order of the simulator's STATISTICS: of now, or out of what PyTorch told."""
    s = s or torch._C._cuda_memoryStats(0)
    return (
        *(s[name]["all"]["current"] for name in NESTED),
        s["oversize_allocations"]["current"],
        s["oversize_segments"]["current"],
        s["num_alloc_retries"],
        s["num_ooms"],
        s.get("num_oom_rejections", 0),
        s["num_sync_all_streams"],
        s["num_device_alloc"],
        s["num_device_free"],
    )


class Session:
    """One script on the allocator of this process."""

    def __init__(self, job: dict[str, Any]) -> None:
        torch.cuda.init()
        torch.zeros((), device="cuda")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.before = statistics()
        self.device_bytes, self.total_bytes = torch.cuda.mem_get_info()
        if job["fraction"] is not None:
            torch.cuda.set_per_process_memory_fraction(job["fraction"])
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(job["streams"] - 1))]
        handles = [stream.cuda_stream for stream in self.streams]
        self.rank = [sorted(handles).index(handle) for handle in handles]
        self.delay_ns = 1000 * job["async_us"]
        self.guard_ns = job["guard_ns"]
        """Shortest time between a check and an event that becomes ready. After less it is unknown whether malloc saw it."""
        self.scope_is_capture = job["scope_is_capture"]
        """In the scope of a pool pending frees are not processed."""
        self.reservation_bytes = job["reservation_bytes"]
        self.snapshot_at = job["snapshot_at"]
        self.middle: dict[str, Any] = {}
        self.pool_ids: dict[tuple[int, int], int] = {(0, 0): 0}
        self.address_of: dict[int, int] = {}
        self.conf = os.environ["PYTORCH_CUDA_ALLOC_CONF"]
        self.pools: dict[int, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self.foreign: dict[int, set[int]] = {}
        """Other streams that use each live item."""
        self.stream_of: dict[int, int] = {}
        self.pool_of: dict[int, int] = {}
        self.pending: dict[int, tuple[int, int]] = {}
        """Earliest and latest time at which the events of each item were recorded."""
        self.rows: list[tuple[int, int, int, int, int]] = []
        """Operation, item, size, stream and pool of each line of a Program."""
        self.seen: list[tuple[int, ...] | None] = []
        """Address and statistics after the operation. None: it happens within the next operation."""
        self.untouched: list[tuple[int, int]] = []
        """(num_device_alloc, where): addresses that were reserved then and had no memory yet; no history contains them"""
        self.broke = ""

    def run(self, script: list[tuple[Any, ...]]) -> dict[str, Any]:
        sure = True
        for position, (name, *words) in enumerate(script):
            if position == self.snapshot_at:
                self.scan()
            try:
                sure = getattr(self, name)(*words)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.broke = str(error).split("\n")[0]
                break
            if not sure:
                break
        segments = torch.cuda.memory._snapshot()["device_traces"][0] if sure else []
        s = torch._C._cuda_memoryStats(0)
        return {
            "sure": sure,
            "rows": self.rows,
            "seen": self.seen,
            "broke": self.broke,
            "peaks": {name: s[name]["all"]["peak"] for name in PEAKS},
            "trace": [(e["action"], e["addr"], e["size"]) for e in segments if e["action"].startswith("segment")],
            "device_bytes": self.device_bytes,
            "total_bytes": self.total_bytes,
            "before": self.before,
            "untouched": self.untouched,
            "middle": self.middle,
        }

    def scan(self) -> None:
        """What lies there now: columns of segments and blocks, as the simulator's Initial has them."""
        items = {self.address_of[item]: item for item in (*self.tensors, *self.pending)}
        handles = sorted(stream.cuda_stream for stream in self.streams)
        states = ["inactive", "active_allocated", "active_pending_free"]
        segments, blocks = [], []
        for i, s in enumerate(torch.cuda.memory_snapshot()):
            pool, large = self.pool_ids[tuple(s["segment_pool_id"])], s["segment_type"] == "large"
            of = (handles.index(s["stream"]), pool, int(large), int(s["is_expandable"]))
            segments.append((s["address"], s["total_size"], *of))
            for b in s["blocks"]:
                state = states.index(b["state"].replace("awaiting", "pending"))
                item = items[b["address"]] if state else -1
                blocks.append((i, b["address"], b["size"], b["requested_size"], state, item))
        self.middle = {"row": len(self.rows), "segments": segments, "blocks": blocks, "statistics": statistics()}

    def note(self, row: tuple[int, int, int, int, int], address: int = -1, seen: bool = True) -> None:
        self.rows.append(row)
        self.seen.append((address, *statistics()) if seen else None)

    # ---- the operations of a script; each says whether we know what happened ----

    def alloc(self, item: int, size: int, stream: int, pool: int) -> bool:
        in_scope = pool > 0 and self.scope_is_capture
        before = torch._C._cuda_memoryStats(0)
        ready = self.complete_what_is_ready() if self.pending and not in_scope else 0
        row = (ALLOC, item, size, self.rank[stream], pool)
        address = -1
        self.rows.append(row)  # before, so that the operation that breaks is there
        try:
            torch.cuda.set_stream(self.streams[stream])
            if pool:
                if pool not in self.pools:
                    self.pools[pool] = torch.cuda.MemPool()
                    self.pool_ids[self.pools[pool].id] = pool
                with torch.cuda.use_mem_pool(self.pools[pool]):
                    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            else:
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            self.tensors[item] = tensor
            self.stream_of[item], self.pool_of[item] = stream, pool
            address = self.address_of[item] = tensor.data_ptr()
        except torch.OutOfMemoryError:
            pass
        after = torch._C._cuda_memoryStats(0)
        self.seen.append((address, *statistics(after)))
        was_full = address < 0 or after["num_sync_all_streams"] > before["num_sync_all_streams"]
        if was_full and "expandable_segments:True" in self.conf:
            self.find_untouched(after["num_device_alloc"])
        if after["num_sync_all_streams"] > before["num_sync_all_streams"]:
            self.complete(list(self.pending))
            return True
        completed = before["active"]["all"]["current"] + (address >= 0) - after["active"]["all"]["current"]
        return completed == ready

    def find_untouched(self, device_allocs: int) -> None:
        """Look for reservations whose first mapping failed: nobody may touch them, and they are that long."""
        match = re.search(r"large_segment_size_mb:(\d+)", self.conf)
        pages = (2 << 20, int(match[1]) << 20 if match else 20 << 20)
        lengths = {-(-self.reservation_bytes // page) * page for page in pages}
        with open("/proc/self/maps") as maps:
            for line in maps:
                limits, rights = line.split()[:2]
                begin, end = (int(limit, 16) for limit in limits.split("-"))
                if rights.startswith("---") and end - begin in lengths:
                    self.untouched.append((device_allocs, begin))

    def free(self, item: int) -> bool:
        if item not in self.tensors:
            return True
        foreign = self.foreign.pop(item, set())
        before_ns = time.monotonic_ns()
        del self.tensors[item]
        if foreign:
            self.pending[item] = before_ns, time.monotonic_ns()
        self.note((FREE_REQUESTED if foreign else FREE, item, 0, 0, 0))
        return True

    def record(self, item: int, stream: int) -> bool:
        if item in self.tensors and stream != self.stream_of[item]:
            self.tensors[item].record_stream(self.streams[stream])
            self.foreign.setdefault(item, set()).add(stream)
        return True

    def wait(self) -> bool:
        """Until all that is pending is ready."""
        if self.pending:
            time.sleep(
                max(0, max(last for _, last in self.pending.values()) + self.delay_ns - time.monotonic_ns()) / 1e9
            )
        return True

    def empty(self) -> bool:
        self.rows.append((EMPTY_CACHE, -1, 0, 0, 0))
        torch.cuda.empty_cache()
        self.seen.append((-1, *statistics()))
        self.complete(list(self.pending))
        return True

    def drop_pool(self, pool: int) -> bool:
        """What happens when the last reference to a MemPool goes."""
        if pool in self.pools:
            self.note((POOL_FREEABLE, -1, 0, 0, pool), seen=False)
            self.rows.append((EMPTY_POOL, -1, 0, 0, pool))
            del self.pools[pool]
            self.seen.append((-1, *statistics()))
            self.complete([item for item in self.pending if self.pool_of[item] == pool])
        return True

    # ---- what other streams still use ----

    def complete_what_is_ready(self) -> int:
        """Say what the next malloc will see as ready, after waiting for what would be ready by a hair. How many."""
        while True:
            now_ns = time.monotonic_ns()
            doubtful = [
                last + self.delay_ns
                for first, last in self.pending.values()
                if first + self.delay_ns - self.guard_ns <= now_ns < last + self.delay_ns
            ]
            if not doubtful:
                break
            time.sleep(max(0, max(doubtful) - now_ns) / 1e9)
        ready = [item for item, (_, last) in self.pending.items() if last + self.delay_ns <= now_ns]
        for item in ready:
            del self.pending[item]
            self.note((FREE_COMPLETED, item, 0, 0, 0), seen=False)
        return len(ready)

    def complete(self, items: list[int]) -> None:
        """A release has waited for their streams."""
        for item in items:
            del self.pending[item]
            self.note((FREE_COMPLETED, item, 0, 0, 0))


def in_a_child(job: dict[str, Any]) -> bytes:
    """The answer, pickled, of a process of its own; of one that died, why."""
    reading, writing = os.pipe()
    file = tempfile.TemporaryFile()  # noqa: SIM115 - 2.13 reports each failed cudaMalloc on stderr
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.environ.update(job["environment"])
            os.dup2(file.fileno(), 2)
            gc.disable()
            try:
                # Kept until the end: its pools would go before its tensors, and at some addresses PyTorch aborts.
                session = Session(job)
                answer = session.run(job["script"])
            except BaseException as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "wb") as out:
                pickle.dump(answer, out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        answer = source.read()
    status = os.waitpid(child, 0)[1]
    with file:
        file.seek(0)
        last = file.read()[-20_000:].decode(errors="replace")
    return answer or pickle.dumps({"failed": f"the process ended with status {status}: {last}"})


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pickle.dump(str(torch.__version__), out)  # (its own type is torch's, which whoever asks need not have)
    out.flush()
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        out.write(in_a_child(job))
        out.flush()


if __name__ == "__main__":
    main()

"""PyTorch's caching allocator on the emulated GPU: fragmentation, settings, out of memory."""

from __future__ import annotations

import json

import pytest

# Each transient 300 MiB block is cached; then a resident 160 MiB tensor splits it, so the next transient needs a new
# segment. max_split_size_mb keeps the large block whole, expandable segments have no borders to fragment at.
FRAGMENT = """
import json, torch
MIB, kept = 1 << 20, []
out_of_memory = False
try:
    for _ in range(12):
        transient = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        del transient
        kept.append(torch.empty(160 * MIB, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    out_of_memory = True
stats = torch.cuda.memory_stats()
free, total = torch.cuda.mem_get_info()
print(json.dumps({
    "allocated": torch.cuda.max_memory_allocated() // MIB,
    "reserved": torch.cuda.max_memory_reserved() // MIB,
    "inactive_split": stats["inactive_split_bytes.all.current"] // MIB,
    "in_use": (total - free) // MIB,
    "out_of_memory": out_of_memory,
}))
"""


@pytest.mark.parametrize(
    ("settings", "reserved_mib", "inactive_split_mib"),
    [("", 3600, 1680), ("max_split_size_mb:100", 2220, 0), ("expandable_segments:True", 2060, 0)],
)
def test_each_allocator_setting_reserves_its_own_amount(run_python, settings, reserved_mib, inactive_split_mib):
    """2060 MiB are allocated each time; what is reserved for them depends on the setting alone."""
    seen = json.loads(run_python(FRAGMENT, PYTORCH_CUDA_ALLOC_CONF=settings))
    assert seen["allocated"] == 2060
    assert seen["reserved"] == reserved_mib
    assert seen["inactive_split"] == inactive_split_mib
    assert seen["in_use"] == reserved_mib + 520  # and the context


def test_fragmentation_runs_out_of_memory_where_a_setting_would_not(run_python):
    """On 3 GiB the default fails with 1.25 GiB allocated; 2220 MiB would have been enough with max_split_size_mb."""
    assert json.loads(run_python(FRAGMENT, EMULATED_GPU_TOTAL_MEM="3G"))["out_of_memory"]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:100", "EMULATED_GPU_TOTAL_MEM": "3G"}
    assert not json.loads(run_python(FRAGMENT, **settings))["out_of_memory"]


def test_out_of_memory_tells_what_pytorch_tells_on_a_card(run_python):
    """The message, its numbers, and the counters; a cached block is given back before the allocator gives up."""
    seen = json.loads(
        run_python(
            """
            import json, torch
            kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(5)]
            cached = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
            del cached
            try:
                torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError as error:
                stats = torch.cuda.memory_stats()
                names = "num_ooms", "num_alloc_retries", "num_device_alloc", "num_device_free"
                print(json.dumps([str(error), [stats[n] for n in names]]))
            """,
            EMULATED_GPU_TOTAL_MEM="8G",
        )
    )
    message, counters = seen
    assert "Tried to allocate 40.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 2.49 GiB is free." in message
    assert "this process has 5.51 GiB memory in use" in message
    assert "5.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated" in message
    assert counters == [1, 1, 6, 1]


def test_history_and_snapshot_and_the_out_of_memory_observer_see_the_events(run_python):
    """What agent/vramscope/trace stands on: events with their frames, in order, and a call before the error."""
    seen = json.loads(
        run_python(
            """
            import json, torch
            torch.cuda.memory._record_memory_history(max_entries=1000)
            told = []
            torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
            def layer(mib):
                return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
            a = layer(50); b = layer(3); del a
            try: layer(1 << 20)
            except torch.OutOfMemoryError: pass
            snapshot = torch.cuda.memory._snapshot()
            events = snapshot["device_traces"][0]
            allocated = next(e for e in events if e["action"] == "alloc")
            print(json.dumps({
                "actions": [e["action"] for e in events],
                "frame": next(f["name"] for f in allocated["frames"] if f["filename"] == "<string>"),
                "segments": len(snapshot["segments"]),
                "told": told,
            }))
            """
        )
    )
    assert [a for a in seen["actions"] if a != "snapshot"] == [
        *["segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"],
        "oom",
    ]
    assert seen["frame"] == "layer"
    assert seen["segments"] == 1
    [(device, asked, total, free)] = seen["told"]
    assert (device, asked >> 20) == (0, 1 << 20)
    assert 0 < free < total


def test_managed_memory_lies_with_the_host_and_is_charged_to_no_device(run_python):
    """What paged optimizers ask for: the host reads and writes it, cudaFree takes it back, once."""
    shown = run_python(
        """
        import ctypes, torch
        free = lambda: torch.cuda.mem_get_info()[0]
        before = free()
        at = ctypes.c_void_p()
        library = ctypes.CDLL("libcudart.so.13")
        assert library.cudaMallocManaged(ctypes.byref(at), ctypes.c_size_t(8 << 20), 1) == 0
        ctypes.memset(at, 7, 8 << 20)
        print(ctypes.string_at(at.value + 5, 1), before - free())
        print(library.cudaFree(at), library.cudaFree(at) != 0)
        """
    )
    assert shown.splitlines() == ["b'\\x07' 0", "0 True"]

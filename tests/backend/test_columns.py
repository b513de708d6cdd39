"""Laws of the codec: what was put in comes out, damage is noticed, and it is small."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vramscope.protocol import series
from vramscope_server.store.columns import Chunk, CorruptChunk, columns_of, concatenate, encode, encode_columns

VC1 = "766331000500000002000473746570810001010000000000000004000000016b00000007000000000000000400000002040a0b"
any_int = st.integers(-(1 << 63), (1 << 63) - 1)


def a_column(rows: int) -> st.SearchStrategy[list[int]]:
    return st.one_of(
        st.lists(any_int, min_size=rows, max_size=rows),
        st.lists(st.integers(-1, 300), min_size=rows, max_size=rows),
        st.lists(st.integers(0, 1 << 30).map(lambda v: v * 512), min_size=rows, max_size=rows),
        any_int.map(lambda v: [v] * rows),
        st.just([-1] * rows),
    )


tables = st.integers(1, 60).flatmap(lambda rows: st.lists(a_column(rows), min_size=1, max_size=6))


@given(tables, st.booleans())
@settings(max_examples=400, deadline=None)
def test_what_was_put_in_comes_out(columns: list[list[int]], thorough: bool) -> None:
    table = np.array(columns, np.int64)
    chunk = Chunk(encode([f"c{i}" for i in range(len(columns))], table, thorough=thorough))
    assert chunk.rows == table.shape[1]
    for i, column in enumerate(columns):
        assert chunk.column(f"c{i}").tolist() == column


@given(tables, st.integers(0, 1 << 20), st.integers(0, 255))
@example([[0]], 13, 128)  # the form of a constant column, which has no planes
@settings(max_examples=300, deadline=None)
def test_damage_is_an_error_of_ours_or_harmless_but_never_another(columns: list[list[int]], at: int, byte: int) -> None:
    blob = bytearray(encode([f"c{i}" for i in range(len(columns))], np.array(columns, np.int64)))
    blob[at % len(blob)] = byte
    try:
        chunk = Chunk(bytes(blob))
        if chunk.rows < 1000:
            for name in chunk.names:
                chunk.column(name)
    except CorruptChunk:
        pass


def test_a_changed_byte_in_the_numbers_is_noticed() -> None:
    """As they are stored, or compressed: what a page shows is what was sent, or it says that it is damaged."""
    random = np.random.default_rng(0)
    for rows in (100, 2000):
        for table in (random.integers(0, 1 << 40, (1, rows)), np.cumsum(random.integers(0, 9, (1, rows)), axis=1) ** 2):
            blob = bytearray(encode(["a"], table))
            for at in random.integers(len(blob) - rows // 2, len(blob), 20).tolist():
                blob[at] ^= 1
                with pytest.raises(CorruptChunk, match="column a"):
                    Chunk(bytes(blob)).column("a")
                blob[at] ^= 1
            assert (Chunk(bytes(blob)).column("a") == table[0]).all()


def test_chunks_of_before_without_a_checksum_are_read() -> None:
    """Written by the version before: two columns of five rows, one of them constant."""
    blob = bytes.fromhex(VC1)
    chunk = Chunk(blob)
    assert (chunk.rows, chunk.column("step").tolist(), chunk.column("k").tolist()) == (5, [1, 2, 4, 9, 3], [7] * 5)


def test_a_chunk_cut_short_is_noticed() -> None:
    blob = encode(["a", "b"], np.arange(200).reshape(2, 100) ** 3)
    for length in range(len(blob)):
        with pytest.raises(CorruptChunk):
            Chunk(blob[:length])


def test_a_series_that_is_unknown_throughout_costs_nothing() -> None:
    step = np.arange(256)
    alone = encode_columns({"step": step})
    assert encode_columns({"step": step, "power_milliwatts": np.full(256, -1)}) == alone
    assert Chunk(alone).column("power_milliwatts").tolist() == [-1] * 256
    constant = encode_columns({"step": step, "segments": np.full(256, 77)})
    assert len(constant) - len(alone) < 30


def test_chunks_of_different_columns_are_joined() -> None:
    one = Chunk(encode_columns({"step": np.array([1, 2]), "a": np.array([5, 6])}))
    two = Chunk(encode_columns({"step": np.array([3]), "b": np.array([7])}))
    joined = {name: values.tolist() for name, values in concatenate([columns_of(one), columns_of(two)]).items()}
    assert joined == {"step": [1, 2, 3], "a": [5, 6, -1], "b": [-1, -1, 7]}


def test_threads_do_not_disturb_each_other() -> None:
    faults: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            table = rng.integers(0, 1 << 40, (4, 300))
            chunk = Chunk(encode(list("abcd"), table))
            if any((chunk.column(name) != table[i]).any() for i, name in enumerate("abcd")):
                faults.append(f"seed {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def sawtooth(rows: int) -> dict[str, np.ndarray]:
    """Samples as a training gives them: a sawtooth with noise, ratchets, and what NVML reads with noise of its own."""
    rng = np.random.default_rng(0)
    tick = np.arange(rows)
    phase = tick % 37 / 37
    allocated = (
        (3e9 + np.minimum(phase, 1 - phase) * 1e10 + rng.integers(0, 40_000_000, rows)).astype(np.int64) // 512 * 512
    )
    reserved = (np.maximum.accumulate(allocated) + (1 << 30)) // (2 << 20) * (2 << 20)
    made = {
        "time_ns": 1_790_000_000_000_000_000 + tick * 100_000_000 + rng.normal(0, 200_000, rows).astype(np.int64),
        "step": tick // 4,
        "phase": tick % 37 // 8,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "active_bytes": allocated + rng.integers(0, 4, rows) * 512_000,
        "requested_bytes": allocated - rng.integers(0, 5_000_000, rows),
        "unusable_bytes": rng.integers(0, 90_000_000, rows) // 512 * 512,
        "inactive_split_bytes": rng.integers(0, 300_000_000, rows) // 512 * 512,
        "segments": 200 + tick // 500,
        "alloc_retries": np.zeros(rows, np.int64),
        "ooms": np.zeros(rows, np.int64),
        "device_used_bytes": reserved + 600_000_000,
        "process_device_bytes": reserved + 500_000_000,
        "others_device_bytes": np.full(rows, 90_177_536),
        "gpu_utilization_percent": np.clip(rng.normal(90, 6, rows), 0, 100).astype(np.int64),
        "temperature_celsius": 60 + (np.sin(tick / 300) * 5).astype(np.int64),
        "power_milliwatts": (300_000 + rng.normal(0, 20_000, rows)).astype(np.int64),
        "process_rss_bytes": 4_000_000_000 + np.cumsum(rng.integers(-50, 55, rows)) * 4096,
        "host_used_bytes": 40_000_000_000 + np.cumsum(rng.integers(-5000, 5000, rows)) * 4096,
        "pinned_bytes": np.full(rows, 1 << 26),
        "pinned_in_use_bytes": rng.integers(1, 9, rows)[tick // 10 * 10] << 20,  # read once a second
        "process_anonymous_bytes": (2_000_000_000 + rng.integers(0, 50, rows) * 4096)[tick // 20 * 20],
        "child_processes": np.full(rows, 4),
        "child_processes_bytes": (900_000_000 + rng.integers(0, 5000, rows) * 4096)[tick // 20 * 20],
        "largest_child_bytes": (300_000_000 + rng.integers(0, 2000, rows) * 4096)[tick // 20 * 20],
        "shared_memory_bytes": (rng.integers(4, 9, rows) << 25)[tick // 20 * 20],
    }
    of_graphs = {
        name for name in series.SAMPLES if name.startswith(("private_", "other_process_"))
    }  # a training without CUDA graphs, and alone on its device, has none
    assert made.keys() == series.SAMPLES.keys() - of_graphs
    return made


@pytest.mark.parametrize(("rows", "limit"), [(256, 2.5), (4096, 2.0)])
def test_realistic_samples_take_few_bytes_a_value(rows: int, limit: float) -> None:
    columns = sawtooth(rows)
    blob = encode_columns(columns, thorough=rows == 4096)
    assert len(blob) / (rows * len(columns)) < limit

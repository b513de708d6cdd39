"""The record itself: complete and quick with very many blocks, of one process in all cases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

import staged  # noqa: E402
from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402

from vramscope.black_box import BadBlackBox, unpack  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]

MANY = Death(
    "a hundred thousand blocks",
    "activations",
    """
    model = stack(2, 256)
    optimizer = optimizer_of(model)
    step(model, optimizer, 64, 256)
    kept = [torch.empty(1, device="cuda") for _ in range(100_000)]
    began = time.perf_counter()
    try:
        megabytes(1 << 14)
    except torch.OutOfMemoryError:
        caught = time.perf_counter() - began
    at = time.time()
    step(model, optimizer, 64, 256)
    for _ in range(2):
        try:
            megabytes(1 << 14)
        except torch.OutOfMemoryError:
            pass
    print(json.dumps({"caught": caught, "at": at, "alive": torch.cuda.memory_stats()["active.all.current"]}))
    time.sleep(0.5)
    os._exit(0)  # (letting go of so many tensors takes longer than all the rest)
    """,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_with_very_many_blocks_it_is_whole(server: RunningServer, tmp_path: Path, emulated_gpu: None) -> None:
    import json

    run_id, code, said = staged.run(MANY, server.url, tmp_path)
    assert code == 0, said[-2000:]
    spoke = json.loads(next(line for line in said.splitlines() if line.startswith('{"caught"')))
    staged.sync(server.url, tmp_path)
    errors, told = staged.told(server.url, run_id)
    assert told is not None
    assert [error["survived"] for error in errors["errors"]] == [True, True, None], "nobody knows of the last one yet"
    first = errors["errors"][0]
    record = server.get(f"/oom/{first['record']}")
    assert record["pieces"]["blocks"] >= spoke["alive"] > 100_000
    assert record["seconds"] < 5.0, "0.3 s on a machine that is not busy"
    assert sum(row["bytes"] for row in record["by_category"]) == record["message"]["total_bytes"]
    page = server.http.get(f"/oom/{first['record']}/export")
    assert page.status_code == 200
    assert "a hundred thousand blocks" in page.text


def test_bytes_that_are_no_record_are_refused_with_a_word() -> None:
    for data in (b"", b"x" * 100, b"\\x78\\x9c\\x03\\x00\\x00\\x00\\x00\\x01"):
        with pytest.raises(BadBlackBox):
            unpack(data)

"""An engine that sleeps and wakes beside the training in one process: a stand-in, and at night the real allocators.

Its pool has an allocator of its own, as vLLM's has: sleeping frees the memory, and PyTorch's allocator does not learn of it.
"""

from __future__ import annotations

import base64
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "backend")]

from deaths import Death  # noqa: E402
from running import RunningServer  # noqa: E402
from staged import run  # noqa: E402

MIB = 1 << 20
TELLS_POOLS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""PyTorch before 2.13 does not tell pools apart, and some versions refuse or bypass an engine's allocator."""
ALLOCATOR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static void *pointers[256];
static size_t sizes[256];
static int count;
static void *symbol(const char *name) {
    const char *libraries[] = {"libcudart.so.13", "libcudart.so.12", 0};
    void *found = dlsym(RTLD_DEFAULT, name);
    for (int i = 0; !found && libraries[i]; i++) {
        void *library = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
        if (library) found = dlsym(library, name);
    }
    return found;
}
static int take(void **place, size_t size) { return ((int (*)(void **, size_t))symbol("cudaMalloc"))(place, size); }
void *pool_malloc(ptrdiff_t size, int device, void *stream) {
    void *made = 0;
    if (count == 256 || take(&made, size)) return 0;
    pointers[count] = made;
    sizes[count++] = size;
    return made;
}
void pool_free(void *pointer, ptrdiff_t size, int device, void *stream) {}
void pool_sleep(void) { for (int i = 0; i < count; i++) ((int (*)(void *))symbol("cudaFree"))(pointers[i]); }
void pool_wake(void) { for (int i = 0; i < count; i++) take(&pointers[i], sizes[i]); }
"""
TRAIN = """
def train(steps):
    for _ in range(steps):
        step(model, optimizer, 64, 256)
model, optimizer = stack(2, 256), None
optimizer = optimizer_of(model)
"""
ENGINE = (
    TRAIN
    + """
import ctypes, types
class CuMemAllocator:
    instance = None
    def __init__(self):
        self.allocator_and_pools = {}
module = types.ModuleType("vllm.device_allocator.cumem")
module.CuMemAllocator = CuMemAllocator
sys.modules["vllm.device_allocator.cumem"] = module
"""
)
OF_OLDER_VLLM, OF_VLLM = "(pool, own)", "[(pool, own)]"
"""What its allocator keeps for each tag."""
SLEEPS = Death(
    "an engine that sleeps",
    "",
    ENGINE
    + """
library = ctypes.CDLL("./liballocator.so")
own = torch.cuda.memory.CUDAPluggableAllocator("./liballocator.so", "pool_malloc", "pool_free")
pool = torch.cuda.MemPool(own._allocator)
with torch.cuda.use_mem_pool(pool):
    cache = megabytes(1024)
CuMemAllocator.instance = CuMemAllocator()
CuMemAllocator.instance.allocator_and_pools["kv_cache"] = ENTRY
train(3); time.sleep(0.5)
library.pool_sleep(); train(3); time.sleep(0.5)
library.pool_wake(); train(3); time.sleep(0.5)
agent.detach()
os._exit(0)  # the emulated GPU does not have the first addresses any more
""",
    memory="4G",
)
EXPANDS = Death(
    "an engine in expandable segments",
    "",
    ENGINE
    + """
saver = types.ModuleType("torch_memory_saver")
pool = torch.cuda.MemPool()
saver.torch_memory_saver = types.SimpleNamespace(_impl=types.SimpleNamespace(_mem_pools={("default", False, 0): pool}))
sys.modules["torch_memory_saver"] = saver
with torch.cuda.use_mem_pool(pool):
    cache = megabytes(256)
train(3)
""",
    memory="4G",
)

STUBS = """
import logging, types
from unittest.mock import MagicMock
def module(name, **names):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update({"__path__": [], **names})
def find_loaded_library(part):
    return next(line.split()[-1] for line in open("/proc/self/maps") if part in line)
# Its kernels need more of CUDA than is emulated. What its allocator imports of it are these few names.
module("vllm", __path__=["installed/vllm"])
module("vllm.logger", init_logger=logging.getLogger)
module("vllm.platforms", current_platform=MagicMock())
module("vllm.utils")
module("vllm.utils.torch_utils", PIN_MEMORY=False)
module("vllm.utils.system_utils", find_loaded_library=find_loaded_library)
module("vllm.distributed")
module("vllm.distributed.device_communicators")
module("vllm.distributed.device_communicators.cuda_wrapper", CudaRTLibrary=MagicMock)
"""
OF_THE_REAL_VLLM = Death(
    "vLLM's allocator that sleeps",
    "",
    TRAIN
    + STUBS
    + """
from vllm.device_allocator.cumem import CuMemAllocator
engine = CuMemAllocator.get_instance()
train(1)
with engine.use_memory_pool(tag="kv_cache"):
    cache = megabytes(1024)
train(3); time.sleep(0.5)
engine.sleep(offload_tags=()); train(3); time.sleep(0.5)
engine.wake_up(); train(3); time.sleep(0.5)
agent.detach()
os._exit(0)
""",
    memory="4G",
)
SAVES = Death(
    "torch_memory_saver that pauses",
    "",
    ENGINE
    + """
sys.path.append("installed")
from torch_memory_saver import torch_memory_saver
torch_memory_saver.hook_mode = "torch"
train(1)
with torch_memory_saver.region(tag="kv_cache"):
    cache = megabytes(1024)
train(3); time.sleep(0.5)
torch_memory_saver.pause("kv_cache"); train(3); time.sleep(0.5)
torch_memory_saver.resume("kv_cache"); train(3); time.sleep(0.5)
agent.detach()
os._exit(0)
""",
    memory="4G",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    running = RunningServer(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def watched(server: RunningServer, folder: Path, death: Death, **environ: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run, and its figure of processes by role."""
    compiler = shutil.which("gcc")
    assert compiler, "the emulated GPU needs it, too"
    (folder / "allocator.c").write_text(ALLOCATOR)
    words = [compiler, "-shared", "-fPIC", "-o", "liballocator.so", "allocator.c", "-ldl"]
    subprocess.run(words, cwd=folder, check=True, timeout=60)
    run_id, code, output = run(death, server.url, folder, **environ)
    assert code == 0, output[-3000:]
    with httpx.Client(base_url=f"{server.url}/api/v1", trust_env=False) as http:
        answer = http.get(f"/runs/{run_id}").raise_for_status().json()
        figure = http.get(f"/runs/{run_id}/figures/processes").raise_for_status().json()["figure"]
    return answer, {trace["meta"]["role"]: trace for trace in figure["data"]}


def levels(trace: dict[str, Any]) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(trace["y"]["bdata"]), trace["y"]["dtype"])
    return values * trace["meta"]["divisor"]


def engine_of(answer: dict[str, Any]) -> dict[str, Any]:
    [found] = [one for one in answer["techniques"] if one["kind"] == "rollout_engine"]
    return dict(found)


def sleeping(entry: str) -> Death:
    return dataclasses.replace(SLEEPS, script=SLEEPS.script.replace("ENTRY", entry))


@pytest.mark.gpu
@pytest.mark.parametrize("entry", [OF_OLDER_VLLM, OF_VLLM], ids=["older vLLM", "vLLM 0.33"])
def test_memory_is_known_while_the_engine_sleeps(server: RunningServer, tmp_path: Path, entry: str) -> None:
    answer, traces = watched(server, tmp_path, sleeping(entry))
    engine = engine_of(answer)
    assert (engine["chip"], engine["observed"]) == ("vLLM pool", "1.00 GiB in the memory pool of vLLM")
    if not TELLS_POOLS:
        return
    assert [one["kind"] for one in answer["findings"]] == []
    assert_memory_is_known_asleep(traces)


def assert_memory_is_known_asleep(traces: dict[str, Any]) -> None:
    """The process has 1 GiB less for a time, while PyTorch counts it all the time."""
    process = levels(traces["process-device"])
    known = process[np.isfinite(process)]
    assert known.max() - known[len(known) // 3 :].min() == pytest.approx(1024 * MIB, abs=64 * MIB)
    assert levels(traces["private-pools"])[-1] == 1024 * MIB
    asleep = (process < known.max() - 900 * MIB) & (levels(traces["private-pools"]) == 1024 * MIB)
    assert asleep.any(), "own memory is known although less than PyTorch has reserved"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_the_real_allocator_of_vllm(server: RunningServer, tmp_path: Path) -> None:
    """Its allocator alone: its kernels need more of CUDA than is emulated. The wheel is large."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "vllm"]
    subprocess.run([*install, "--target", tmp_path / "installed"], check=True)
    answer, traces = watched(server, tmp_path, OF_THE_REAL_VLLM)
    engine = engine_of(answer)
    assert (engine["chip"], engine["observed"]) == ("vLLM pool", "1.00 GiB in the memory pool of vLLM")
    if TELLS_POOLS:
        assert_memory_is_known_asleep(traces)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_the_real_torch_memory_saver(server: RunningServer, tmp_path: Path) -> None:
    """Its wheel has libraries that work on the emulated GPU. It needs nothing but PyTorch and NumPy."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "torch-memory-saver"]
    subprocess.run([*install, "--target", tmp_path / "installed"], check=True)
    answer, traces = watched(server, tmp_path, SAVES)
    engine = engine_of(answer)
    assert engine["chip"] == "torch_memory_saver pool"
    assert engine["observed"] == "1.00 GiB in the memory pool of torch_memory_saver"
    if TELLS_POOLS:
        assert_memory_is_known_asleep(traces)


@pytest.mark.gpu
def test_memory_that_cannot_be_released_is_a_finding(server: RunningServer, tmp_path: Path) -> None:
    if not TELLS_POOLS:
        return
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    answer, _ = watched(server, tmp_path, EXPANDS, **conf)
    assert engine_of(answer)["chip"] == "torch_memory_saver pool"
    [finding] = answer["findings"]
    assert finding["kind"] == "sleep-mode-and-expandable"
    assert "in the memory pool of torch_memory_saver are in expandable segments" in finding["text"]
    assert finding["advice"] == "set expandable_segments:False"


@pytest.mark.gpu
def test_without_the_setting_or_with_an_allocator_of_its_own_nothing_is_found(
    server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    answer, _ = watched(server, tmp_path / "plain", EXPANDS)
    assert engine_of(answer)["observed"] == "256 MiB in the memory pool of torch_memory_saver"
    assert answer["findings"] == []
    if not TELLS_POOLS:
        return
    (tmp_path / "own").mkdir()
    answer, _ = watched(server, tmp_path / "own", sleeping(OF_VLLM), PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert engine_of(answer)["chip"] == "vLLM pool"
    assert answer["findings"] == [], "this version of PyTorch asks the engine's allocator"

"""Runs trainings under the agent and records the ground truth: storages saved by autograd, of parameters, or copied from the
host. Each training has its own process, forked from one that has loaded the libraries and not used the GPU.

The truth is a list of (allocations so far, address, category) that the program itself can prove, independent of the agent.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vramscope.protocol.window import ACTIONS

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

JUDGED = (
    *("gpt2", "gpt2_checkpointed", "gpt2_autocast", "resnet", "t5", "lstm", "gan", "reentrant", "trainer"),
    *("fsdp2", "ddp", "sam", "lbfgs", "accumulated", "offloaded", "momentum_queue", "recurrent_scores"),
)
"""Trainings whose categories are compared with the truth."""
REMEDIES = (
    "gpt2_chunked",
    "gpt2_half",
    "gpt2_half_chunked",
    "gpt2_more_rows",
    "wide",
    "wide_loop",
    "wide_autocast",
    "wide_bfloat16",
    "wide_eight_bit",
    "gpt2.expandable",
    "zeros",
    "early_clear",
    "evaluation",
    "evaluation_no_grad",
    "t5_checkpointed",
    "contrastive",
    "contrastive_more_rows",
    "as_wide_as_the_batch",
    "ema",
    "lora",
    "best_state",
    "best_state_on_the_host",
    "policy",
    "rollouts",
    "rollouts_without_cache",
    "policy_of_the_completion",
)

WAYS = (
    *(f"roberta{how}" for how in ("+as", "+4", "+checkpointing", "+8bit", "+4+checkpointing", "+4+checkpointing+8bit")),
    *(f"encoder{how}" for how in ("+as", "+8bit", "+4+checkpointing+8bit")),
    *(f"roberta+bf16{how}" for how in ("", "+4", "+x3", "+checkpointing+x3")),
    *(f"tied{how}" for how in ("+as", "+4")),
    *(f"vit{how}" for how in ("+as", "+4", "+checkpointing")),
)

SNAPSHOTS = ("gpt2.snapshot", "gpt2.snapshot_with_cpp")

STEPS = 3
"""Steps of the first window."""
Note = tuple[int, int, str]


class Truth:
    """Ground truth of storages, from objects and autograd's hooks."""

    def __init__(self) -> None:
        import torch

        self.notes: list[Note] = []
        self._stats = torch._C._cuda_memoryStats
        self._put_back: list[Callable[[], None]] = []

    def note(self, tensor: Any, category: str) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's, on this rank
        if tensor is not None and tensor.is_cuda and tensor.untyped_storage().nbytes():
            so_far = self._stats(0)["allocation"]["all"]["allocated"]
            self.notes.append((so_far, tensor.untyped_storage().data_ptr(), category))

    def objects(self, models: list[Any], optimizers: list[Any]) -> None:
        for model in models:
            for parameter in model.parameters():
                self.note(parameter, "parameters")
                self.note(parameter.grad, "gradients")
            for buffer in model.buffers():
                self.note(buffer, "buffers")
        for optimizer in optimizers:
            for group in optimizer.param_groups:  # (they need not be a model's: 32-bit copies)
                for parameter in group["params"]:
                    self.note(parameter, "parameters")
                    self.note(parameter.grad, "gradients")
            for state in optimizer.state.values():
                for entry in state.values():
                    for value in entry if isinstance(entry, list) else [entry]:  # (LBFGS's history)
                        if hasattr(value, "is_cuda"):
                            self.note(value, "optimizer")

    def listen(self, models: list[Any], optimizers: list[Any]) -> None:
        import torch
        import torch.utils.checkpoint as checkpoints

        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self.objects(models, optimizers))
            optimizer.register_step_post_hook(lambda *_: self.objects(models, optimizers))
        for model in models:
            model.register_forward_hook(lambda module, args, output: self._outputs(output))
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(lambda one: self.note(one.grad, "gradients"))
        for name in ("cuda", "to"):
            self._listen_to_copies(name)

        def pack(tensor: Any) -> Any:
            self.note(tensor, "activations")
            return tensor.detach() if tensor.requires_grad and not tensor.is_leaf else tensor

        self.saved = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        # What a checkpoint saves while it recomputes, its own hooks take before ours.
        original = checkpoints._recomputation_hook.__init__

        def on_call(hook: Any, *args: Any, **kwargs: Any) -> None:
            original(hook, *args, **kwargs)
            theirs = hook.pack_hook

            def pack_again(tensor: Any) -> Any:
                self.note(tensor, "activations")
                return theirs(tensor)

            hook.pack_hook = pack_again

        checkpoints._recomputation_hook.__init__ = on_call

    def workspaces(self) -> None:
        """Allocations that are freed when cuBLAS releases its workspaces."""
        import torch

        def held() -> set[int]:
            segments = torch.cuda.memory_snapshot()
            return {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}

        before = held()
        torch._C._cuda_clearCublasWorkspaces()
        self.notes += [(1 << 60, address, "workspaces") for address in before - held()]

    def _outputs(self, output: Any) -> None:
        values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
        for value in values:
            if hasattr(value, "is_cuda"):
                self.note(value, "activations")

    def _listen_to_copies(self, name: str) -> None:
        import torch

        original = getattr(torch.Tensor, name)

        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            if not tensor.is_cuda and result.is_cuda:
                # (what was saved on the host comes back within a backward)
                self.note(result, "activations" if torch._C._current_graph_task_id() != -1 else "input")
            return result

        setattr(torch.Tensor, name, copy)


def observe(name: str, scale: int) -> dict[str, Any]:
    """Train ``STEPS`` steps under the agent in a fresh process. Returns ``{windows, notes}`` with packed windows."""
    os.environ.update(
        EMULATED_GPU_LEDGER="private",
        VRAMSCOPE_SERVER="http://127.0.0.1:9",
        VRAMSCOPE_QUIET="1",
        VRAMSCOPE_CLOSE_TIMEOUT_S="0",
    )
    import known_trainings
    import recipes
    import torch

    from vramscope import agent
    from vramscope.guard import guard
    from vramscope.protocol.window import pack

    guard.raise_faults = True

    truth = Truth()
    windows: list[bytes] = []
    known_trainings.SCALE = scale
    name, _, how = name.partition(".")
    is_snapshot = how.startswith("snapshot")
    if how == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    if is_snapshot:
        # "all" is PyTorch's own default: C++ frames too, where symbols are looked up.
        torch.cuda.memory._record_memory_history(stacks="all" if how == "snapshot_with_cpp" else "python")
    training = recipes.made(name) or known_trainings.TRAININGS[name]()
    truth.listen(training.models, training.optimizers)
    if training.listen is not None:
        training.listen(truth.note)
    if is_snapshot:
        return observe_by_snapshot(training, truth)
    session = agent.attach(training.trainer)
    packing = session._recorder._packing  # type: ignore[union-attr]
    packing._on_window = lambda window: windows.append(pack(window))
    faults: list[str] = []
    threading.excepthook = lambda failure: faults.append(f"{failure.thread}: {failure.exc_value!r}")
    with truth.saved:
        if training.trainer is not None:
            training.step()
        else:
            for _ in range(STEPS):
                truth.objects(training.models, training.optimizers)
                training.step()
    deadline = time.monotonic() + 60
    while (
        not windows and not faults and time.monotonic() < deadline
    ):  # it is packed on a thread of its own, and closing waits for 2 s
        time.sleep(0.01)
    session.close()
    assert windows, f"no window was packed; {faults}"
    truth.workspaces()
    return {"windows": windows, "notes": truth.notes, **peaks()}


def observe_by_snapshot(training: Any, truth: Truth) -> dict[str, Any]:
    """Train without the agent. Returns PyTorch's own snapshot, from the first allocation on."""
    import torch

    with truth.saved:
        for _ in range(STEPS):
            truth.objects(training.models, training.optimizers)
            training.step()
    snapshot = pickle.dumps(torch.cuda.memory._snapshot())
    return {"snapshot": snapshot, "notes": truth.notes, **peaks()}


def peaks() -> dict[str, int]:
    """Peaks of the allocator's own counters, which the agent does not change."""
    import torch

    stats = torch.cuda.memory_stats()
    return {f"peak_{what}_bytes": stats[f"{what}_bytes.all.peak"] for what in ("allocated", "reserved")}


def main(folder: str, scale: str, *names: str) -> None:
    """Run each training in its own child process, two at a time. The result is NAME.pickle or NAME.error in ``folder``."""
    sys.path.insert(0, str(Path(__file__).parent))
    import accelerate  # noqa: F401 - loaded once for all
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.t5.modeling_t5
    import transformers.trainer  # noqa: F401

    # Else the first collection of each child would visit all objects of the libraries, and copy every page of theirs.
    gc.collect()
    gc.freeze()
    running: list[int] = []
    for name in names:
        if len(running) == 2:
            os.waitpid(running.pop(0), 0)
        child = os.fork()
        if not child:
            answer_to(name, int(scale), Path(folder))
        running.append(child)
    for child in running:
        os.waitpid(child, 0)


def answer_to(name: str, scale: int, folder: Path) -> None:
    code = 1
    try:
        answer = observe(name, scale)
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(answer))
        code = 0
    except BaseException:
        import traceback

        (folder / f"{name}.error").write_text(traceback.format_exc())
    finally:
        os._exit(code)


# ---- from outside ----


def run(folder: Path, names: Sequence[str], scale: int = 1) -> dict[str, Observed]:
    """Results of all trainings. Raises RuntimeError with the error of a failed one."""
    import warm

    here = str(Path(__file__).parent)
    done = warm.run(
        f"import sys; sys.path.insert(0, {here!r}); import observed; observed.main(*sys.argv[1:])",
        arguments=[str(folder), str(scale), *names],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VRAMSCOPE_SPOOL_DIR": str(folder / "spool")},
        timeout=540.0,
    )
    for failed in folder.glob("*.error"):
        raise RuntimeError(f"{failed.stem}: {failed.read_text()}")
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {name: read(folder / f"{name}.pickle") for name in names}


@functools.cache
def shared() -> dict[str, Observed]:
    """All trainings of the tests, with a third of the layers of tests/anatomy/RESULTS.md, run once per process."""
    with tempfile.TemporaryDirectory(prefix="anatomy-") as folder:
        return run(Path(folder), [*JUDGED, *REMEDIES, *WAYS, *SNAPSHOTS], scale=3)


class Observed(NamedTuple):
    """One training: first window, true category of each allocation ("" if unknown), and the allocator's peak."""

    trace: Trace
    truth: list[str]
    peak_allocated_bytes: int
    peak_reserved_bytes: int


TRUTH_ORDER = ("workspaces", "parameters", "gradients", "optimizer", "buffers", "input", "activations")
"""Order of categories: a storage with several gets the first."""


def read(path: Path) -> Observed:
    from vramscope.protocol.window import unpack
    from vramscope_server.analysis.trace.from_window import from_window

    snapshot = pickle.loads(path.read_bytes())
    peaks = snapshot["peak_allocated_bytes"], snapshot["peak_reserved_bytes"]
    if "snapshot" in snapshot:
        from vramscope_server.analysis.snapshot_format.reader import read as read_snapshot

        trace = read_snapshot(snapshot["snapshot"]).devices[0]
        return Observed(trace, truth_of(trace, 0, snapshot["notes"]), *peaks)
    window = unpack(snapshot["windows"][0])
    trace = from_window(window)
    assert window.start is not None
    truth = truth_of(trace, window.start.counters["allocation.all.allocated"], snapshot["notes"])
    return Observed(trace, truth, *peaks)


def truth_of(trace: Trace, allocated_before: int, notes: list[Note]) -> list[str]:
    """True category of each allocation. Allocations of the window without a note are temporaries."""
    lives, count = trace.lives, len(trace.events)
    so_far = np.concatenate([[0], np.cumsum(trace.events.action == ACTIONS.index("alloc"))])
    born = np.where(lives.alloc_event >= 0, so_far[np.maximum(lives.alloc_event, 0)] + 1, 0)
    died = so_far[np.minimum(lives.free_requested_event, count)]
    at: dict[int, list[int]] = {}
    for row, address in enumerate(lives.address.tolist()):
        at.setdefault(address, []).append(row)
    truth = ["temporaries" if made else "" for made in lives.alloc_event >= 0]
    known: dict[int, int] = {}
    for noted, address, category in notes:
        then = noted - allocated_before
        for row in at.get(address, ()):
            there = (
                lives.free_requested_event[row] >= count if category == "workspaces" else born[row] <= then <= died[row]
            )
            rank = TRUTH_ORDER.index(category)
            if then >= 0 and there and rank < known.get(row, len(TRUTH_ORDER)):
                known[row], truth[row] = rank, category
    return truth

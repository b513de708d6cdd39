"""Trainings that run out of memory, each for a known reason, and what undoes the reason.

A script is Python with ``R``, the remedies to apply, at hand; ``R`` is empty in the first run. Sizes are those of a card of 2 GiB,
of which CUDA's context takes 520 MiB: on the emulated GPU they cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PRELUDE = """
import gc, json, os, sys, time
import torch
from torch import nn
from vramscope import agent
from vramscope.guard import guard
guard.raise_faults = True
MIB = 1 << 20
R = json.loads(os.environ["REMEDY"])
PROJECT = os.environ.get("PROJECT", os.environ["RUN"])
agent.attach(run_id=os.environ["RUN"], name=os.environ["RUN_NAME"], project=PROJECT, interval_ms=20)

def megabytes(n, **more):
    return torch.empty(n * MIB, dtype=torch.uint8, device="cuda", **more)

def stack(layers, width):
    with torch.device("cuda"):
        return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)])

def optimizer_of(model):
    if R.get("optimizer") == "SGD":
        return torch.optim.SGD(model.parameters(), 0.01)
    return torch.optim.AdamW(model.parameters(), foreach=R.get("foreach"))

def step(model, optimizer, rows, width):
    parts = R.get("micro_batches", 1)
    for _ in range(parts):
        model(torch.empty(rows // parts, width, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Death:
    """One training."""

    name: str
    cause: str
    script: str
    memory: str = "2G"
    env: dict[str, str] = field(default_factory=dict)
    survived: bool = False
    line: str = ""
    """Text of the source line that made the request."""
    phase: str | None = None
    module: str | None = None
    """Module that made the request. None: it is unknown or does not matter."""
    node: str | None = None
    """Autograd node that made the request. None: it is unknown or does not matter."""
    kind: str = "pytorch"
    remedy: bool | None = True
    """Whether a remedy is marked as enough. None: that depends on the version of PyTorch; one that is marked is still tried."""
    source: str = ""
    """Source of the number of the first such remedy. "": any source."""
    tried: bool = True
    """False: only its words are staged, so that no remedy can be tried"""
    in_suite: bool = True
    """False: it runs with ``python tests/oom/table.py`` alone, as it takes long"""
    killed: bool = False
    """Whether the process does not end by itself: its record is then written before it is killed."""


DEATHS = [
    Death(
        "a model that does not go on the card",
        "weights",
        """
        model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False, device="meta") for _ in range(40)])
        model = model.to_empty(device="cpu")
        model.to("cuda")  # asks
        """,
        line='model.to("cuda")',
        phase="other",
        remedy=False,
    ),
    Death(
        "gradients that have no room beside their weights",
        "weights",
        """
        model = stack(14, 4096)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="backward",
    ),
    Death(
        "a copy of the model that copy.deepcopy makes",
        "weights",
        """
        import copy
        model = stack(6, 4096)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for n in range(6):
            optimizer.zero_grad()
            model(torch.empty(64, 4096, device="cuda")).square().mean().backward()
            optimizer.step()
            if n == 3:
                average = copy.deepcopy(model.cpu() if R.get("copy") == "host" else model)  # asks
                model.cuda()
        """,
        line="# asks",
    ),
    Death(
        "the optimizer's first step",
        "optimizer",
        """
        model = stack(7, 4096)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 4096)  # asks
        """,
        phase="optimizer",
    ),
    Death(
        "copies of all parameters at the update",
        "optimizer",
        """
        model = stack(5, 4096)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64, 4096)  # asks
        """,
        memory="2040M",
        phase="optimizer",
    ),
    Death(
        "activations of the first forward",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 64000, 1024)  # asks
        """,
        phase="forward",
        module="3.1",
    ),
    Death(
        "a batch larger than the ones before",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        for rows in (8000, 16000, 24000, 80000, 8000):
            step(model, optimizer, rows, 1024)  # asks
        """,
        phase="forward",
    ),
    Death(
        "an input longer than the ones before",
        "activations",
        """
        with torch.device("cuda"):
            model = nn.Sequential(nn.Embedding(1000, 512), *[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6)])
        optimizer = optimizer_of(model)
        for n in range(34):
            length = min(200_000 if n == 31 else 10_000, R.get("length", 200_000))
            model(torch.zeros(1, length, dtype=torch.long, device="cuda")).square().mean().backward()  # asks
            optimizer.step()
            optimizer.zero_grad()
        """,
        phase="forward",
        module="2.0",
    ),
    Death(
        "inside backward",
        "activations",
        """
        class Wide(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.rows = x.shape[0]
                return x * 1
            @staticmethod
            def backward(ctx, g):
                torch.empty(ctx.rows, 8 * 1024, device="cuda")  # asks
                return g
        inner = stack(4, 1024)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = inner
            def forward(self, x):
                return Wide.apply(self.inner(x))
        model = Model()
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 32000, 1024)
        """,
        phase="backward",
        line="torch.empty(ctx.rows",
        node="WideBackward",
    ),
    Death(
        "in autograd's own operation",
        "activations",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 44000, 1024)  # asks
        """,
        phase="backward",
        node="PowBackward0",
    ),
    Death(
        "an evaluation with a batch of its own",
        "activations",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for _ in range(2):
            step(model, optimizer, 4000, 1024)
        model.eval()
        with torch.no_grad():
            model(torch.empty(240000, 1024, device="cuda"))  # asks
        """,
        line="240000",
        remedy=False,
        module="0.0",
    ),
    Death(
        "free pieces, none of them large enough",
        "fragmentation",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        kept = []
        for _ in range(6):
            step(model, optimizer, 64, 256)
            big = megabytes(200)
            del big
            kept.append(megabytes(110))  # asks
        del kept
        """,
        memory="1600M",
    ),
    Death(
        "pieces, while a window is open",
        "fragmentation",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        kept = []
        for _ in range(2):
            step(model, optimizer, 64, 256)
            for _ in range(3):
                big = megabytes(200)  # asks
                del big
                kept.append(megabytes(110))
        del kept
        """,
        memory="1600M",
        source="replayed",
    ),
    Death(
        "pieces that differ in each step",
        "fragmentation",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        kept = []
        for size in (150, 170, 190, 210, 230):
            step(model, optimizer, 64, 256)
            passing = megabytes(size)  # asks
            del passing
            kept.append(megabytes(size * 55 // 100))
        del kept
        """,
        memory="1300M",
    ),
    Death(
        "outputs with their graphs in a list",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        history = []
        for _ in range(60):
            loss = model(torch.empty(8000, 512, device="cuda")).square().mean()
            loss.backward(retain_graph=True)
            history.append(loss.detach() if R.get("leak") is False else loss)  # keeps
            optimizer.step()
            optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        "features that are never let go",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        features = []
        for _ in range(60):
            out = model(torch.empty(16000, 512, device="cuda"))
            if R.get("leak") is not False:
                features.append(out.detach())  # keeps
            out.square().mean().backward()
            del out
            optimizer.step()
            optimizer.zero_grad()
        """,
        line="# keeps",
    ),
    Death(
        "predictions made longer and longer in an evaluation",
        "leak",
        """
        model = stack(3, 512)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 8000, 512)
        class Meter:
            def __init__(self):
                self.found = torch.empty(0, 512, device="cpu" if R.get("leak") is False else "cuda")
            def update(self, out):
                self.found = torch.cat([self.found, out.to(self.found.device)])  # asks
        meter = Meter()
        with torch.no_grad():
            for _ in range(24):
                meter.update(model(torch.empty(16000, 512, device="cuda")))  # keeps
        """,
        phase="eval",
        line="# keeps",
    ),
    Death(
        "predictions that transformers' Trainer gathers",
        "leak",
        """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=256, vocab_size=20000, n_positions=128))
        rows = [dict(input_ids=torch.zeros(128, dtype=torch.long), labels=torch.zeros(128, dtype=torch.long))] * 320
        arguments = TrainingArguments(
            output_dir="out", max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no", disable_tqdm=True,
            eval_strategy="steps", eval_steps=2, eval_accumulation_steps=1 if R.get("leak") is False else None)
        Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=lambda told: {}).train()  # asks
        """,
        phase="eval",
        memory="3G",
        in_suite=False,  # (its remedy gathers 3 GiB on the host)
    ),
    Death(
        "another process on the card",
        "other_process",
        """
        import subprocess
        other = None
        if R.get("other") is not False:
            code = "import torch,sys; x=torch.empty(900<<20,dtype=torch.uint8,device='cuda'); print(1,flush=True); sys.stdin.read()"
            other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            other.stdout.readline()
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        try:
            for _ in range(3):
                step(model, optimizer, 20000, 1024)  # asks
        finally:
            if other is not None:
                other.stdin.close()
                other.wait()
        """,
        memory="2560M",
        env={"EMULATED_GPU_LEDGER": "own"},
    ),
    Death(
        "a limit that was set",
        "limit",
        """
        if R.get("limit") is not False:
            torch.cuda.set_per_process_memory_fraction(0.25)
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for _ in range(3):
            step(model, optimizer, 24000, 1024)  # asks
        """,
        memory="3G",
    ),
    Death(
        "refused before it was tried",
        "activations",
        """
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        for _ in range(2):
            step(model, optimizer, 64, 256)
        out = model(torch.empty(64, 256, device="cuda"))
        megabytes(1 << 14)  # asks
        """,
        env={"PYTORCH_CUDA_ALLOC_CONF": "throw_on_cudamalloc_oom:True"},
        kind="preemptive",
        remedy=False,
    ),
    Death(
        "a library that takes memory by itself",
        "outside_pytorch",
        """
        import ctypes
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for _ in range(4):
            step(model, optimizer, 12000, 1024)
            time.sleep(0.05)
        runtime = ctypes.CDLL(next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))
        runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        taken = ctypes.c_void_p()
        torch.cuda.empty_cache()
        assert runtime.cudaMalloc(ctypes.byref(taken), 1200 * MIB) == 0
        step(model, optimizer, 12000, 1024)  # asks
        """,
    ),
    Death(
        "cuBLAS without its workspace",
        "outside_pytorch",
        """
        model = stack(2, 256)
        step(model, optimizer_of(model), 64, 256)
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")  # asks
        """,
        kind="cublas",
        line="raise RuntimeError",
        remedy=False,
    ),
    Death(
        "CUDA's own pool",
        "activations",
        """
        # The backend is chosen when PyTorch is loaded, which these processes do not do again: its words alone are staged.
        model = stack(4, 1024)
        step(model, optimizer_of(model), 4000, 1024)
        raise torch.OutOfMemoryError(  # asks
            "Allocation on device 0 would exceed allowed memory. (out of memory)\\nCurrently allocated     : 64.00 MiB\\n"
            "Requested               : 781.25 MiB\\nDevice limit            : 2.00 GiB\\nFree (according to CUDA): 600.00 MiB\\n"
            "PyTorch limit (set by user-supplied memory fraction)\\n                        : 17179869184.00 GiB"
        )
        """,
        remedy=False,  # more than any step before took, and asked for between two: what it would have led to is not known
        kind="cudaMallocAsync",
        tried=False,
    ),
    Death(
        "a data set on the device",
        "data",
        """
        model = stack(4, 1024)
        optimizer = optimizer_of(model)
        for n in range(6):
            if n == 3:  # (an evaluation set is loaded late, and as a whole)
                device = "cpu" if R.get("data") == "host" else "cuda"
                images = [torch.empty(4000, 1024, device=device) for _ in range(86)]
            step(model, optimizer, 4000, 1024)  # asks
        """,
        line="model(torch.empty(rows",
        phase="forward",
        source="measured",
    ),
    Death(
        "the host's memory in a DataLoader's worker",
        "outside_pytorch",
        """
        from torch.utils.data import DataLoader, Dataset
        class Images(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, at):
                if at == 5:
                    raise MemoryError("Unable to allocate 93.1 GiB for an array with shape (100000, 1000, 250)")
                return torch.zeros(256)
        model = stack(2, 256)
        optimizer = optimizer_of(model)
        for batch in DataLoader(Images(), batch_size=2, num_workers=1):  # asks
            model(batch.cuda()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        kind="host",
        remedy=False,
    ),
    Death(
        "a DataLoader's worker that somebody ended",
        "",
        """
        import signal
        from torch.utils.data import DataLoader, Dataset
        class Images(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, at):
                if at == 0:  # before it has anything to hand over: a pipe that breaks in the middle is reported as such
                    os.kill(os.getpid(), signal.SIGKILL)
                return torch.zeros(256)
        model = stack(2, 256)
        next(iter(DataLoader([torch.zeros(1)])))  # (what PyTorch imports at its first batch swallows the news of the worker)
        for batch in DataLoader(Images(), batch_size=2, num_workers=1):
            model(batch.cuda()).square().mean().backward()
        """,
        kind="worker_killed",
        remedy=False,
    ),
    Death(
        "caught, and tried again with less",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        for rows in (8000, 64000, 8000, 8000):
            try:
                step(model, optimizer, rows, 1024)  # asks
                continue
            except torch.OutOfMemoryError:
                pass  # (in here the error's frames still hold what the step had made)
            optimizer.zero_grad()
            step(model, optimizer, rows // 8, 1024)
        """,
        survived=True,
    ),
    Death(
        "caught, and tried again in its except block",
        "leak",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        def less():
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            for _ in range(8):
                model(torch.empty(8000, 1024, device="cuda")).square().mean().backward()
            optimizer.step()
        for rows in (8000, 64000, 8000):
            failed = False
            try:
                step(model, optimizer, rows, 1024)
            except torch.OutOfMemoryError:
                failed = True
                if R.get("leak", True):
                    less()  # asks
            if failed:
                less()
        """,
        line="less()  # asks",
    ),
    Death(
        "told as another error",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        try:
            for _ in range(3):
                step(model, optimizer, 64000, 1024)  # asks
        except torch.OutOfMemoryError as fault:
            raise ValueError("the trial failed") from fault
        """,
        phase="forward",
    ),
    Death(
        "SIGKILL right after it",
        "activations",
        """
        import signal
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        try:
            for _ in range(3):
                step(model, optimizer, 64000, 1024)  # asks
        except torch.OutOfMemoryError:
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        killed=True,
    ),
    Death(
        "os._exit right after it",
        "activations",
        """
        model = stack(6, 1024)
        optimizer = optimizer_of(model)
        try:
            for _ in range(3):
                step(model, optimizer, 64000, 1024)  # asks
        except torch.OutOfMemoryError:
            os._exit(3)
        """,
        killed=True,
    ),
]
"""All but the one of two ranks, which is a test of its own."""

"""Programs that use rare means of Python and PyTorch, and must run with the agent as they run without it.

See ``programs.py`` for what they may use.
"""

from __future__ import annotations

MODES = """
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode

class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(str(func))
        return func(*args, **kwargs or {})

class Calls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        called.append(getattr(func, "__name__", str(func)))
        return func(*args, **kwargs or {})

seen, called = ([], [])
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(30):
    with Ops():
        train(model, optimizer, 1, "cuda")
    with Calls():
        train(model, optimizer, 1, "cuda")
    show("ops", [len(seen), seen])
    show("calls", [len(called), called])
    seen.clear()
    called.clear()
"""

FLOPS = """
from torch.utils.flop_counter import FlopCounterMode

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for _ in range(10):
    with FlopCounterMode(display=False) as counted:
        train(model, optimizer, 1, "cuda")
    show("flops", counted.get_total_flops())
    show(
        "by module",
        {k: dict(((str(a), b) for a, b in v.items())) for k, v in counted.get_flop_counts().items()},
    )
"""

ANOMALY = """
torch.autograd.set_detect_anomaly(True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 20)

class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * float("nan")

try:
    Bad.apply(model(torch.randn(4, 8)).square()).mean().backward()
except RuntimeError as error:
    print("error", str(error)[:60])
show_state(model, optimizer)
"""

DEFAULTS = """
torch.set_default_device("cuda")
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True, warn_only=False)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 40, None)
show(
    "threads",
    [
        torch.get_num_threads(),
        torch.get_num_interop_threads(),
        torch.get_default_dtype(),
        str(torch.get_default_device()),
        torch.are_deterministic_algorithms_enabled(),
    ],
)
show(
    "modes",
    [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
    ],
)
show_state(model, optimizer)
"""

PROFILED = """
from torch.profiler import profile, schedule, ProfilerActivity

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)

def ready(prof):
    show(
        "events", sorted(((e.key, e.count) for e in prof.key_averages() if not e.key.startswith("Optimizer")))
    )

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
    on_trace_ready=ready,
    record_shapes=True,
) as prof:
    for _ in range(14):
        train(model, optimizer, 1)
        prof.step()
"""

HISTORY = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 5, "cuda")
torch.cuda.memory._record_memory_history(max_entries=1000)
for _ in range(5):
    train(model, optimizer, 2, "cuda")
    found = torch.cuda.memory._snapshot()
    show("trace", [len(one) for one in found["device_traces"]])
    show("actions", [[e["action"] for e in one] for one in found["device_traces"]])
torch.cuda.memory._record_memory_history(enabled=None)
train(model, optimizer, 2, "cuda")
show("after", [len(one) for one in torch.cuda.memory._snapshot()["device_traces"]])
"""

RESETS = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(60):
    if step % 3 == 0:
        torch.cuda.reset_peak_memory_stats()
    if step % 7 == 0:
        torch.cuda.reset_accumulated_memory_stats()
    if step % 20 == 0:
        torch.cuda.empty_cache()
    train(model, optimizer, 1, "cuda")
    stats = torch.cuda.memory_stats()
    show("stats", {k: v for k, v in sorted(stats.items())})
    show("summary", torch.cuda.memory_summary())
"""

TRACED = """
model = Model()
model.drop.p = 0.0
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
x = torch.randn(4, 8)
for _ in range(12):
    train(model, optimizer, 1)
    show("fx", torch.fx.symbolic_trace(model).code)
    show("trace", str(torch.jit.trace(model, x).inlined_graph))
    show("export", str(torch.export.export(model, (x,)).graph))
show("script", torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).code)
twin = copy.deepcopy(model)
two = copy.deepcopy(optimizer)
show_state(twin, two)
"""

TRACE_FUNCTION = """
count = [0, 0]

def tracer(frame, event, arg):
    if frame.f_code.co_filename == "<string>":
        count[0] += 1
    return tracer

def profiler(frame, event, arg):
    if frame.f_code.co_filename == "<string>":
        count[1] += 1

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
sys.settrace(tracer)
sys.setprofile(profiler)
for _ in range(20):
    train(model, optimizer, 1)
    show("mine", [sys.gettrace() is tracer, sys.getprofile() is profiler])
sys.settrace(None)
sys.setprofile(None)
"""

HANDLERS = """
import signal, threading, atexit, faulthandler, time

def note(*args):
    print("handler", args[0] if isinstance(args[0], int) else type(args[0]).__name__, flush=True)

signal.signal(signal.SIGUSR1, note)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGALRM, note)
sys.excepthook = lambda kind, value, tb: print("mine", kind.__name__, value)
threading.excepthook = lambda args: print("thread", args.exc_type.__name__)
sys.unraisablehook = lambda args: print("unraisable", args.exc_type.__name__)
atexit.register(print, "first registered")
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
atexit.register(print, "second registered")
signal.signal(signal.SIGHUP, note)
train(model, optimizer, 10)
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
    os.kill(os.getpid(), number)
    time.sleep(0.01)
signal.setitimer(signal.ITIMER_REAL, 0.02)
time.sleep(0.08)
one = threading.Thread(target=lambda: 1 / 0)
one.start()
one.join()

class Dies:
    def __del__(self):
        raise KeyError("x")

Dies()
show(
    "handlers",
    [signal.getsignal(n) is note for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP)],
)
show(
    "int",
    [
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
    ],
)
train(model, optimizer, 30)
raise ValueError("the end")
"""

COLLECTOR = """
import gc, weakref

gc.disable()
gc.set_threshold(50, 5, 5)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
show("callbacks", [len(gc.callbacks), gc.isenabled(), gc.get_threshold(), gc.get_debug()])

class Node:
    pass

for step in range(60):
    a, b = (Node(), Node())
    a.other, b.other = (b, a)
    weakref.finalize(a, print, "cycle", step)
    out = model(torch.randn(4, 8))
    weakref.finalize(out, print, "out", step)
    loss = out.square().mean()
    weakref.finalize(loss, print, "loss", step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        "step",
        step,
        sys.getrefcount(model),
        sys.getrefcount(optimizer),
        sys.getrefcount(out),
        sys.getrefcount(loss),
        sys.getrefcount(model.up.weight),
        sys.getrefcount(model.up.weight.grad),
    )
    del a, b
    if step == 40:
        print("collected", gc.collect() > 0)
show("end", [gc.isenabled(), gc.get_threshold(), gc.garbage])
"""

ENABLED_COLLECTOR = """
import gc, weakref

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
gc.collect()
gc.freeze()
show("frozen", gc.get_freeze_count() > 0)
for step in range(300):
    optimizer.zero_grad(set_to_none=True)
    out = model(torch.randn(4, 8))
    out.square().mean().backward()
    optimizer.step()
    seen = weakref.ref(out)
    del out
    assert seen() is None, step
show("state", [gc.isenabled(), gc.get_threshold()])
"""

ENVIRONMENT = """
before = (
    dict(os.environ),
    list(sys.path),
    os.getcwd(),
    os.umask(18),
    sys.getrecursionlimit(),
    sys.getswitchinterval(),
    list(sys.meta_path),
    list(sys.path_hooks),
    list(warnings.filters),
)
os.umask(before[3])
import decimal, locale, resource, numpy

state = lambda: [
    decimal.getcontext(),
    locale.setlocale(locale.LC_ALL),
    resource.getrlimit(resource.RLIMIT_NOFILE),
    numpy.geterr(),
    numpy.random.get_state()[1].sum(),
    numpy.get_printoptions()["precision"],
    os.nice(0),
    sorted(os.sched_getaffinity(0)),
]
first = [repr(one) for one in state()]
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 60)
after = (
    dict(os.environ),
    list(sys.path),
    os.getcwd(),
    os.umask(18),
    sys.getrecursionlimit(),
    sys.getswitchinterval(),
    list(sys.meta_path),
    list(sys.path_hooks),
    list(warnings.filters),
)
for name, one, two in zip(
    ("environ", "path", "cwd", "umask", "recursion", "switch", "meta_path", "path_hooks", "filters"),
    before,
    after,
):
    print(name, one == two, "" if one == two else [repr(one)[:300], repr(two)[:300]])
print(first == [repr(one) for one in state()])
print(logging.getLogger().handlers, logging.root.level, logging.getLogger("httpx").level)
"""

ERRORS = """
warnings.resetwarnings()
warnings.simplefilter("error")
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 60)
show_state(model, optimizer)
"""

NO_STREAMS = """
file = open("out.txt", "w")
sys.stderr = None
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
print = lambda *a, **k: file.write(" ".join(map(str, a)) + "\\n")
train(model, optimizer, 30)
sys.stdout.close()
sys.stdout = None
train(model, optimizer, 30)
file.close()
"""

FEW_FILES = """
import resource

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))
attach(model)
train(model, optimizer, 60)
show_state(model, optimizer)
"""

NO_FOLDER = """
import shutil

os.makedirs("gone")
os.chdir("gone")
os.rmdir(os.getcwd())
for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "TMPDIR", "USER", "LOGNAME", "PATH"):
    os.environ.pop(name, None)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 60)
show_state(model, optimizer)
"""

FORKS = """
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 20)
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    with torch.no_grad():
        show("child", model(torch.ones(4, 8)))
    model.up.weight.data.zero_()
    random.random()
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(model, optimizer, 20)
show_state(model, optimizer)
"""

ASYNC = """
import asyncio

async def tick(stop):
    n = 0
    while not stop.is_set():
        n += 1
        await asyncio.sleep(0)
    return n > 0

async def main():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    attach(model)
    stop = asyncio.Event()
    other = asyncio.create_task(tick(stop))
    for _ in range(30):
        train(model, optimizer, 1)
        await asyncio.sleep(0)
    stop.set()
    print(await other, [t.get_name() for t in asyncio.all_tasks()] == [asyncio.current_task().get_name()])

asyncio.run(main(), debug=False)
"""

GLOBAL_HOOKS = """
from torch.nn.modules import module as m
from torch.optim import optimizer as o

order = []
m.register_module_forward_pre_hook(lambda mod, args: order.append(("pre", type(mod).__name__)))
m.register_module_forward_hook(lambda mod, args, out: order.append(("post", type(mod).__name__)))
m.register_module_full_backward_hook(lambda mod, gi, go: order.append(("back", type(mod).__name__)))
o.register_optimizer_step_pre_hook(lambda *a: order.append(("step pre", len(a))))
o.register_optimizer_step_post_hook(lambda *a: order.append(("step post", len(a))))
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
model.up.register_forward_hook(
    lambda mod, args, kwargs, out: order.append(("kw", len(args), len(kwargs))),
    with_kwargs=True,
    always_call=True,
)
model.register_full_backward_pre_hook(lambda mod, g: order.append(("back pre", type(mod).__name__)))
for weight in model.parameters():
    weight.register_post_accumulate_grad_hook(lambda w: order.append(("acc", tuple(w.shape))))
attach(model)
for _ in range(40):
    train(model, optimizer, 1)
    show("order", [len(order), order])
    order.clear()
show(
    "global",
    [
        len(getattr(m, n))
        for n in sorted(vars(m))
        if n.startswith("_global") and hasattr(getattr(m, n), "__len__")
    ],
)
show("optimizer", [len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)])
"""

GRAPH = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
packed = [0, 0]

def pack(x):
    packed[0] += 1
    return x

def unpack(x):
    packed[1] += 1
    return x

def walk(node, found):
    found.append((node.name(), len(node.next_functions)))
    for one, _ in node.next_functions:
        if one is not None:
            walk(one, found)
    return found

for step in range(30):
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    show("graph", walk(loss.grad_fn, []))
    show("loss", [loss._version, loss.is_leaf, loss._backward_hooks, loss.output_nr])
    optimizer.zero_grad()
    loss.backward(retain_graph=step % 2 == 0)
    optimizer.step()
    show("packed", packed)
show("grads", [p.grad for p in model.parameters()])
show("hooks", [p._backward_hooks for p in model.parameters()])
"""

ODD_MODULES = """
from dataclasses import dataclass

@dataclass
class Out:
    loss: torch.Tensor
    extra: object = None

class Odd(nn.Module):
    __slots__ = ()

    def __init__(self):
        super().__init__()
        self.inner = Model()
        self.calls = 0

    def __getattr__(self, name):
        if name.startswith("magic_"):
            return 42
        return super().__getattr__(name)

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return super().__call__(*args, **kwargs)

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = nn.Module.__hash__

    def __bool__(self):
        raise RuntimeError("truth")

    def __len__(self):
        return 0

    def __iter__(self):
        raise RuntimeError("iterated")

    def __repr__(self):
        raise RuntimeError("shown")

    def __del__(self):
        print("deleted", flush=True)

    def forward(self, x, *, scale=1.0):
        return Out(self.inner(x).square().mean() * scale, extra=self)

class Step(torch.optim.SGD):
    def step(self, closure=None, extra=None):
        print("step", extra)
        return super().step(closure)

    def __repr__(self):
        raise RuntimeError("shown")

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = object.__hash__

model = Odd()
optimizer = Step(model.parameters(), 0.1)
attach(model)
for step in range(40):
    out = model(torch.randn(4, 8), scale=2.0)
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step(extra=step)
    show("loss", out.loss)
    del out
show("calls", [model.calls, model.magic_x])
optimizer.step = lambda *a, **k: print("replaced")
for _ in range(3):
    optimizer.step()
del model, optimizer
import gc

gc.collect()
print("end")
"""

SUBCLASS = """
class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        log.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})

log = []
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
kept = []
for step in range(40):
    x = torch.randn(4, 8).as_subclass(Logged)
    out = model(x)
    kept.append(out)
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    show("log", [len(log), log])
    log.clear()
"""

DDP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
import tempfile

dist.init_process_group("gloo", init_method="file://" + tempfile.mkdtemp() + "/x", rank=0, world_size=1)
model = DistributedDataParallel(Model(), static_graph=True)
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(40):
    with model.no_sync() if step % 2 else model.join() if step % 10 == 0 else torch.enable_grad():
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
    if step % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
    show("loss", loss)
show_state(model, optimizer)
dist.destroy_process_group()
"""

CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(30):
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    for reentrant in (True, False):
        loss = checkpoint(model, x, use_reentrant=reentrant).square().mean()
        loss.backward()
        show("loss", loss)
    optimizer.step()
    optimizer.zero_grad()
show_state(model, optimizer)
"""

THREADS = """
import threading

def work(seed, results):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(8, 4)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(50):
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results[seed] = digest([*model.parameters()])

attach()
results = {}
threads = [threading.Thread(target=work, args=(seed, results)) for seed in range(3)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(sorted(results.items()))
"""

INFERENCE = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(30):
    train(model, optimizer, 1, "cuda")
    model.eval()
    with torch.inference_mode():
        out = model(torch.randn(4, 8, device="cuda"))
        show("inference", [out.is_inference(), out])
    with torch.no_grad():
        model(torch.randn(4, 8, device="cuda"))
    model.train()
show_state(model, optimizer)
"""

GENERATOR = """
def batches():
    try:
        while True:
            yield torch.randn(4, 8)
    finally:
        print("generator closed", flush=True)

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
source = batches()
for step, x in enumerate(source):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 30:
        break
print("after the loop")
del source
print("deleted")
"""

SEEN_ATTACHING = """
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile


class Calls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        called.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


called = []
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
with profile(activities=[ProfilerActivity.CPU]) as seen, Calls():
    attach(model)
    train(model, optimizer, 14, "cuda")
show("calls", [len(called), called])
show("events", sorted((e.key, e.count) for e in seen.key_averages() if not e.key.startswith("Optimizer")))
"""

ENDED_ELSEWHERE = """
# The recording that begins with attach ends in the thread that trains. PyTorch warns of a callback that its thread does not have.
import threading

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
other = threading.Thread(target=train, args=(model, optimizer, 12, "cuda"))
other.start()
other.join()
torch.cuda.memory._record_memory_history(max_entries=1000)
with torch.profiler.record_function("mine"):
    train(model, optimizer, 1, "cuda")
show("annotations", [(a["name"], a["stage"]) for a in torch.cuda.memory._snapshot()["external_annotations"]])
torch.cuda.memory._record_memory_history(enabled=None)
"""

MADE_AFTER_ATTACH = """
# A model that attach has not seen: all modules are listened to until it is known.
attach()
model = Model()
x = torch.randn(32, 8)
compiled = torch.compile(model, backend="eager")
traced = torch.jit.trace(Model(), x, check_trace=False)
kept = []
with torch.no_grad():
    for _ in range(40):
        kept.append(compiled(x))
        kept.append(model(x))
        kept.append(traced(x))
show("kept", kept)
show("graph", str(traced.graph))
show_hooks(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    compiled(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
show_state(model, optimizer)
show("counters", dict(torch._dynamo.utils.counters["stats"]))
"""

UNUSUAL_PROGRAMS = {
    "seen while it is attached": SEEN_ATTACHING,
    "modes that see each operation": MODES,
    "count of operations": FLOPS,
    "anomaly detection": ANOMALY,
    "default device and type": DEFAULTS,
    "the user's profiler": PROFILED,
    "the user's memory history": HISTORY,
    "counters reset by the user": RESETS,
    "traced and exported between steps": TRACED,
    "the user's trace functions": TRACE_FUNCTION,
    "handlers of signals and errors": HANDLERS,
    "garbage collection off": COLLECTOR,
    "garbage collection, frozen": ENABLED_COLLECTOR,
    "state of the process": ENVIRONMENT,
    "warnings as errors": ERRORS,
    "no output streams": NO_STREAMS,
    "few file descriptors": FEW_FILES,
    "no folder and no home": NO_FOLDER,
    "a fork": FORKS,
    "event loop": ASYNC,
    "hooks of all modules": GLOBAL_HOOKS,
    "graph walked by the user": GRAPH,
    "modules with methods of their own": ODD_MODULES,
    "tensors of a subclass": SUBCLASS,
    "distributed, one rank": DDP,
    "checkpointing": CHECKPOINTED,
    "training in threads": THREADS,
    "made and compiled after attach": MADE_AFTER_ATTACH,
    "attached in one thread, trained in another": ENDED_ELSEWHERE,
    "inference mode between steps": INFERENCE,
    "a generator that the loop leaves": GENERATOR,
}

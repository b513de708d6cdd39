"""Programs that must run with the agent as they run without it.

Each is a text. Before it comes :data:`PRELUDE`, which defines ``attach`` (the agent's, or a function that does nothing) and
``show``, which prints a value. All that a program prints, writes to files or leaves behind is compared.
"""

from __future__ import annotations

PRELUDE = """
import copy, hashlib, io, logging, os, pickle, pickletools, random, sys, warnings
warnings.resetwarnings()
warnings.simplefilter("default")
import torch
from torch import nn
import torch.nn.functional as F
random.seed(1)
torch.manual_seed(1)

def attach(*target):
    if os.environ["WATCHED"] == "yes":
        from vramscope import agent
        agent.attach(*target, interval_ms=20)

def digest(value):
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        return [str(value.dtype), list(value.shape), digest(bytes(value.flatten().view(torch.uint8).numpy().tobytes()))]
    if isinstance(value, (bytes, bytearray)):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, dict):
        return {str(key): digest(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(one) for one in value]
    return repr(value)

def show(name, value):
    print(name, digest(value), flush=True)

def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()

def operations(pickled):
    # Without the tensors' bytes: they name addresses, and are in the order of these.
    found = [(one.name, argument) for one, argument, _ in pickletools.genops(pickled) if one.name != "FRAME"]
    return [pair for pair in found if not isinstance(pair[1], (str, bytes)) or len(pair[1]) < 80]

HOOKS = [name for name in vars(nn.Module()) if "hooks" in name]

def show_hooks(module):
    for name, one in module.named_modules():
        for kind in HOOKS:
            hooks = vars(one)[kind]
            if hooks:
                print("hooks", name, kind, type(hooks).__name__, list(hooks))

def show_state(model, *optimizers):
    show_hooks(model)
    show("weights", model.state_dict())
    show("keys", sorted(vars(model)))
    show("class", [type(model), type(model).__mro__, sorted(vars(type(model)))])
    for optimizer in optimizers:
        show("optimizer", optimizer.state_dict())
        show("attributes", sorted(vars(optimizer)))
    show("random", [random.getstate(), torch.get_rng_state()])

class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(8, width), nn.Linear(width, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.up(x))))

def train(model, optimizer, steps=6, device="cpu"):
    for _ in range(steps):
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show("loss", loss)
"""

PLAIN = """
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 120)
show_state(model, optimizer)
"""

BY_HAND = """
model = Model()
attach()
for _ in range(120):
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad, alpha=0.01)
    model.zero_grad()
    show("versions", [weight._version for weight in model.parameters()])
show_state(model)
"""

SAVED = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(%s)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
train(model, optimizer, device="cuda")
scheduler.step()
torch.save(model, "model.pt")
torch.save(optimizer, "optimizer.pt")
torch.save(scheduler, "scheduler.pt")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
model.cpu()
for protocol in (2, 4, 5):
    show(f"pickle {protocol}", operations(pickle.dumps([model, optimizer], protocol)))
model.cuda()
copied = copy.deepcopy(model)
show_state(copied)
torch.save(copied, "copy.pt")
torch.save(copy.deepcopy(optimizer), "optimizer_copy.pt")
torch.serialization.add_safe_globals([Model, nn.Linear, nn.Dropout, set])
torch.load("model.pt", weights_only=True)
torch.save(list(model.parameters()), "parameters.pt")
show_state(model, optimizer)
"""

EXPORTED = """
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 3)
model.eval()
x = torch.randn(4, 8)
for strict in (False, True):
    exported = torch.export.export(model, (x,), strict=strict)
    print(exported.graph_module.code)
    print(exported.graph_signature)
print(torch.fx.symbolic_trace(model).code)
traced = torch.jit.trace(model, x)
print(traced.graph)
print(torch.jit.freeze(traced).graph)
show("traced", traced(x))
show_state(model, optimizer)
"""

HOOKS = """
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
calls = []
class Hook:
    def __call__(self, module, args, *rest):
        calls.append(type(module).__name__)
class OptimizerHook:
    def __call__(self, optimizer, args, kwargs):
        calls.append("step")
before = [model.register_forward_pre_hook(Hook()), model.up.register_forward_hook(Hook())]
attach(model)
train(model, optimizer, 2)
after = [model.register_forward_pre_hook(Hook()), model.down.register_full_backward_hook(Hook())]
after.append(optimizer.register_step_post_hook(OptimizerHook()))
after.append(model.up.weight.register_post_accumulate_grad_hook(lambda weight: calls.append("gradient")))
after.append(model.up.weight.register_hook(lambda gradient: None))
train(model, optimizer, 3)
show_hooks(model)
show("ids", [handle.id for handle in before + after])
model.up.weight._backward_hooks.clear()
torch.save(model, "model.pt")
show("optimizer's", [list(optimizer._optimizer_step_post_hooks), list(optimizer._optimizer_step_pre_hooks)])
from torch.nn.modules import module
show("global", [len(module._global_forward_pre_hooks), len(module._global_forward_hooks)])
for handle in before + after:
    handle.remove()
train(model, optimizer, 2)
show("calls", calls)
show_state(model, optimizer)
"""

AMP = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
attach(model)
for step in range(12):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
show("scaler", scaler.state_dict())
torch.save(scaler, "scaler.pt")
show_state(model, optimizer)
"""

ACCUMULATED = """
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
from torch.utils.checkpoint import checkpoint
for step in range(8):
    for part in range(3):
        x = torch.randn(4, 8, requires_grad=True)
        out = checkpoint(model, x, use_reentrant=bool(part % 2))
        (out.square().mean() / 3).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
show_state(model, optimizer)
"""

CLOSURE = """
model = Model()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
attach(model)
x = torch.randn(16, 8)
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    show("loss", loss)
    return loss
for _ in range(4):
    optimizer.step(closure)
show_state(model, optimizer)
"""

AVERAGED = """
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
ema = copy.deepcopy(model)
average = torch.optim.swa_utils.AveragedModel(model)
for _ in range(5):
    train(model, optimizer, 2)
    average.update_parameters(model)
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
        show("ema", ema(torch.ones(2, 8)))
    pickle.dumps(ema)
torch.save(ema, "ema.pt")
torch.save(average, "average.pt")
show_state(ema)
show_state(model, optimizer)
"""

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
data = TensorDataset(torch.randn(32, 8))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=%d)
for epoch in range(2):
    for (batch,) in loader:
        show("batch", batch)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model.eval()
        show("evaluated", [model(batch).sum() for (batch,) in loader])
        model.train()
iterator = iter(loader)
for _ in iterator:
    pass
try:
    next(iterator)
except StopIteration:
    print("at its end")
show_state(model, optimizer)
"""

COUNTERS = """
model = Model(512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
for step in range(30):
    if step % 10 == 3:
        torch.cuda.reset_peak_memory_stats()
    model(torch.randn(64 * (1 + step % 3), 8, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    show("counters", [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()])
    show("reserved", torch.cuda.max_memory_reserved())
    if step % 10 == 9:
        torch.cuda.empty_cache()
        torch.cuda.reset_accumulated_memory_stats()
show("stats", dict(torch.cuda.memory_stats()))
show("stats of all", torch.cuda.memory_summary())
show("history", torch._C._cuda_isHistoryEnabled())
"""

FUNCTIONS = """
import inspect
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
early_backward, early_grad = torch.autograd.backward, torch.autograd.grad
early_call = nn.Module.__call__
attach(model)
train(model, optimizer, 3)
from torch.utils.data import dataloader
functions = [torch.autograd.backward, torch.autograd.grad, nn.Module.__call__, nn.Module._call_impl, nn.Module.train]
functions += [torch.amp.GradScaler.scale, torch.amp.GradScaler.step, dataloader._BaseDataLoaderIter.__next__]
functions += [torch.cuda.CUDAGraph.replay, torch.autograd.graph.saved_tensors_hooks.__enter__, torch.optim.SGD.step]
for function in functions:
    show(function.__qualname__, [str(inspect.signature(function)), function.__module__, hasattr(function, "__wrapped__")])
    show("source", inspect.getsource(function))
    show("pickle", pickle.dumps(function))
    show("attributes", vars(function))
    show("code", [function.__code__.co_filename, function.__code__.co_firstlineno, function.__code__.co_flags])
show("same", [early_backward is torch.autograd.backward, early_grad is torch.autograd.grad, early_call is nn.Module.__call__])
show("pickled", pickle.dumps([early_backward, early_grad]))
show("gradients", early_grad(model(torch.ones(2, 8)).sum(), list(model.parameters())))
import multiprocessing.reduction
show("reduced", bytes(multiprocessing.reduction.ForkingPickler.dumps(nn.Module.train)))
"""

FAILS_IN_FORWARD = """
class Fails(Model):
    def forward(self, x):
        if len(x) > 4:
            raise ValueError("too long")
        return super().forward(x)
model = nn.Sequential(Fails())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 3)
try:
    model(torch.ones(5, 8))
except ValueError as error:
    import traceback
    traceback.print_exc()
    show("error", [pickle.dumps(error), vars(error), error.__context__, error.__cause__])
model(torch.ones(5, 8))
"""

FAILS_IN_BACKWARD = """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("in backward")
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 3)
try:
    torch.autograd.grad(torch.ones(1), torch.ones(1))
except RuntimeError:
    import traceback
    traceback.print_exc()
Fails.apply(model(torch.ones(5, 8))).sum().backward()
"""

ENDS = """
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 3)
import atexit
atexit.register(print, "at exit")
%s
"""

WARNS = """
warnings.simplefilter("error")
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
attach(model)
train(model, optimizer, 40, "cuda")
try:
    warnings.warn("of the user's")
except UserWarning as warning:
    print("raised", warning)
show_state(model, optimizer)
"""

WARNS_ONCE = """
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
warnings.simplefilter("once")
filters = list(warnings.filters)
def warn():
    warnings.warn("said once")
warn()
attach(model)
train(model, optimizer, 20)
warn()
show("filters", filters == warnings.filters)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()
"""

LOGS = """
logging.basicConfig(level=logging.%s, format="%%(levelname)s %%(name)s %%(threadName)s %%(message)s", stream=sys.stdout)
made = []
factory = logging.getLogRecordFactory()
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 5)
import time
time.sleep(0.6)
train(model, optimizer, 5)
logging.getLogger("user").info("a line")
if "%s" == "INFO":
    import httpx, threading, http.server
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(204)
            self.end_headers()
        def log_message(self, *_):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    httpx.get(f"http://127.0.0.1:{server.server_port}/")
show("level", [logging.root.level, len(logging.root.handlers), logging.raiseExceptions])
"""

COMPILED = """
import torch._dynamo.utils
model = Model()
compiled = %s
optimizer = torch.optim.%s(model.parameters())
attach(model)
def step(x):
    loss = compiled(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
step = %s
for size in (4, 4, 4, 6, 6, 4, 4, 4):
    show("loss", step(torch.randn(size, 8)))
for name, counted in torch._dynamo.utils.counters.items():
    if name != "frames":  # of these some are the standard library's, seen or not as caches have it
        show(name, sorted(counted.items()))
show("cached", len(torch._dynamo.eval_frame.cached_backends))
show("files", [name for name in torch._dynamo.convert_frame.input_codes.seen if "vramscope" in str(name)])
show_state(model, optimizer)
"""

TRANSFORMED = """
model = Model()
model.drop.p = 0.0
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
weights = dict(model.named_parameters())
def loss_of(weights, x):
    return torch.func.functional_call(model, weights, (x,)).square().mean()
each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))
for _ in range(4):
    train(model, optimizer, 1)
    show("each", each({name: weight.detach() for name, weight in weights.items()}, torch.randn(5, 8)))
with torch.autograd.graph.save_on_cpu():
    model(torch.ones(2, 8)).sum().backward()
optimizer.step()
show("hessian", torch.autograd.functional.hessian(lambda x: model(x).square().sum(), torch.ones(1, 8)))
show_state(model, optimizer)
"""

SENT = """
import torch.multiprocessing as multiprocessing
model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
attach(model)
train(model, optimizer, 4)
def child(queue, model):
    show_hooks(model)
    queue.put(digest(model.state_dict()))
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, model))
    process.start()
    print(queue.get())
    process.join()
    show("code", process.exitcode)
train(model, optimizer, 4)
pid = os.fork()
if not pid:
    show("child's", model(torch.ones(2, 8)))
    os._exit(5)
show("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
show_state(model, optimizer)
"""

TRAINER = """
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
model = BertForSequenceClassification(config)
rows = [{"input_ids": torch.arange(6) + i, "labels": i % 2} for i in range(16)]
arguments = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, report_to=[], save_steps=3, logging_steps=2,
                              disable_tqdm=True, use_cpu=True, seed=3)
trainer = Trainer(model=model, args=arguments, train_dataset=rows)
attach(trainer)
trainer.train()
show("logged", [{key: value for key, value in one.items() if "runtime" not in key and "second" not in key}
                for one in trainer.state.log_history])
torch.save(model, "whole.pt")
show_state(model)
show("callbacks", [type(one).__name__ for one in trainer.callback_handler.callbacks if "vramscope" not in type(one).__module__])
"""

LIGHTNING = """
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, at):
        return self.model(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4)
lit = Lit()
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
                            enable_model_summary=False, default_root_dir="out")
attach(trainer)
trainer.fit(lit, loader)
checkpoint = torch.load(next(os.path.join(at, f) for at, _, fs in os.walk("out") for f in fs), weights_only=False)
show("checkpoint", checkpoint["state_dict"])
show("callbacks", sorted(checkpoint["callbacks"]))
show_state(lit)
"""

ACCELERATED = """
from accelerate import Accelerator
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer = accelerator.prepare(model, optimizer)
attach(accelerator)
for _ in range(8):
    with accelerator.accumulate(model):
        loss = model(torch.randn(4, 8)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        show("loss", loss)
accelerator.save_state("state")
show_state(accelerator.unwrap_model(model))
"""

NOT_COMPILED = "model"
MODEL = 'torch.compile(model, backend="eager")'
IN_PLACE = '(model.compile(backend="eager"), model)[1]'

PROGRAMS = {
    "plain loop": PLAIN,
    "updated by hand": BY_HAND,
    "objects saved, target given": SAVED % "model",
    "objects saved, nothing given": SAVED % "",
    "exported, traced and scripted": EXPORTED,
    "user hooks": HOOKS,
    "mixed precision": AMP,
    "accumulation and checkpointing": ACCUMULATED,
    "closure": CLOSURE,
    "averaged weights": AVERAGED,
    "data loader": LOADER % 0,
    "data loader, workers": LOADER % 2,
    "memory counters": COUNTERS,
    "watched functions": FUNCTIONS,
    "error in forward": FAILS_IN_FORWARD,
    "error in backward": FAILS_IN_BACKWARD,
    "exit code": ENDS % "sys.exit(3)",
    "exit words": ENDS % "sys.exit('words')",
    "interrupted": ENDS % "raise KeyboardInterrupt",
    "killed": ENDS % "import signal; os.kill(os.getpid(), signal.SIGTERM)",
    "warnings are errors": WARNS,
    "warnings once": WARNS_ONCE,
    "log at INFO": LOGS % ("INFO", "INFO"),
    "log at DEBUG": LOGS % ("DEBUG", "DEBUG"),
    "compiled model": COMPILED % (MODEL, "SGD", "step"),
    "model compiled in place": COMPILED % (IN_PLACE, "SGD", "step"),
    "compiled step": COMPILED % (NOT_COMPILED, "AdamW", 'torch.compile(step, backend="eager")'),
    "compiled step, autograd's graphs": COMPILED % (NOT_COMPILED, "SGD", 'torch.compile(step, backend="aot_eager")'),
    "torch.func and saved tensors": TRANSFORMED,
    "processes": SENT,
}
SLOW_PROGRAMS = {"transformers": TRAINER, "lightning": LIGHTNING, "accelerate": ACCELERATED}

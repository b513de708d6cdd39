"""The loss of each step, as it was given to backward: in loops whose losses are known, and in those that have none."""

from __future__ import annotations

import math

import pytest
from training import run, told_of

pytestmark = pytest.mark.timeout(180)


LOOPS = """
from contextlib import contextmanager
device = torch.device(DEVICE)
@contextmanager
def watched(name):
    model = nn.Linear(8, 8, device=device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = agent.attach(model, name=name)
    yield session, model, optimizer
    session.close()
def of(model, value):  # a loss of this value, with a graph
    return model(torch.ones(2, 8, device=device)).sum() * 0 + value
def step(optimizer):
    optimizer.step()
    optimizer.zero_grad()
"""

CPU_LOOPS = """
with watched("plain") as (_, model, optimizer):
    for value in (3.0, 2.5, math.nan, math.inf, -1.0):
        of(model, value).backward()
        step(optimizer)
with watched("accumulated") as (_, model, optimizer):
    for value in (3.0, 2.0):
        for part in (0, 1, 2, 3):
            (of(model, value + part) / 4).backward()
        step(optimizer)
with watched("cleared between") as (_, model, optimizer):  # as SAM does
    for value in (3.0, 2.0, 1.0):
        of(model, value).backward()
        if value != 2:
            optimizer.zero_grad()
            of(model, value + 1).backward()
        step(optimizer)
with watched("closure") as (_, model, _):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, tolerance_grad=0, tolerance_change=0)
    for _ in range(3):
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).sum()  # without an end: each step evaluates four times
            loss.backward()
            return loss
        optimizer.step(closure)
with watched("adversaries") as (_, model, optimizer):
    other = nn.Linear(8, 8)
    others = torch.optim.SGD(other.parameters(), 1e-3)
    for value in (1.0, 2.0, 3.0):
        of(model, value).backward()
        step(optimizer)
        of(other, 10 * value).backward()
        step(others)
with watched("adversaries, both first") as (_, model, optimizer):
    other = nn.Linear(8, 8)
    others = torch.optim.SGD(other.parameters(), 1e-3)
    for value in (1.0, 2.0, 3.0):
        of(model, value).backward()
        of(other, 10 * value).backward()
        step(optimizer)
        step(others)
with watched("one loss, two optimizers") as (_, model, _):
    halves = [torch.optim.SGD([model.weight], 1e-3), torch.optim.AdamW([model.bias], 1e-3)]
    for value in (1.0, 2.0, 3.0):
        of(model, value).backward()
        for optimizer in halves:
            step(optimizer)
with watched("scaled") as (_, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for value in (3.0, 2.0, 1.0):
        for part in (0, 1):
            scaler.scale(of(model, value + part) / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
with watched("scaled, a step left out") as (_, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for value in (3.0, math.inf, 1.0):
        scaler.scale(model(torch.ones(2, 8)).sum() * (value if value == math.inf else 0) + value).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
with watched("scaled, and changed after") as (_, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for value in (3.0, 2.0):
        (scaler.scale(of(model, value)) * 2).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
with watched("scaled by hand") as (_, model, optimizer):
    of(model, 5.0).backward()
    step(optimizer)
    import types
    sys.modules["deepspeed"] = types.ModuleType("deepspeed")  # a package that scales by itself
    exec("def backward(loss): loss.backward()", engine := {"__name__": "deepspeed.runtime.engine"})
    engine["backward"](of(model, 4.0) * 1024)
    step(optimizer)
    del sys.modules["deepspeed"]
with watched("no loss") as (_, model, optimizer):
    out = model(torch.ones(2, 8))
    out.backward(torch.ones_like(out))
    step(optimizer)
    torch.autograd.backward([model(torch.ones(2, 8)).sum(), model(torch.ones(2, 8)).mean()])
    step(optimizer)
    model(torch.ones(2, 8)).sum().backward(torch.tensor(0.5))
    step(optimizer)
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(of(model, 7.0), model.parameters())):
        parameter.grad = gradient
    step(optimizer)
with watched("told") as (session, model, optimizer):
    for value in (3.0, 2.0):
        loss = of(model, value)
        session.log(learning_rate=0.1)
        loss.backward()
        step(optimizer)
        session.log(loss=value * 10, tokens=7)
    session.log(text="3", step=4, nothing=None, **{"not a name": 1.0})
    with torch.no_grad():
        session.log(accuracy=loss.detach())

def weights(watched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    session = agent.attach(model, name="bitwise") if watched else None
    for _ in range(20):
        model(torch.randn(4, 8)).square().mean().backward()
        step(optimizer)
    if session: session.close()
    return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()
(a, rng_a), (b, rng_b) = weights(False), weights(True)
assert all(torch.equal(x, y) for x, y in zip(a, b)) and torch.equal(rng_a, rng_b)
"""


def test_the_loss_of_loops_whose_losses_are_known_and_none_where_one_number_would_mix_things(collector, spool) -> None:
    output = run(
        "import math\nDEVICE = 'cpu'\n" + LOOPS + CPU_LOOPS, collector, spool, loop=False, CUDA_VISIBLE_DEVICES=""
    )

    def losses(name: str) -> list[tuple[int, float]]:
        return told_of(collector, name).get("backward_loss", [])

    plain = losses("plain")
    assert [step for step, _ in plain] == [1, 2, 3, 4, 5]
    assert [value for _, value in plain if not math.isnan(value)] == [3.0, 2.5, math.inf, -1.0]
    assert math.isnan(plain[2][1])
    assert losses("accumulated") == [(1, 4.5), (2, 3.5)]
    assert losses("cleared between") == [(2, 2.0)]
    assert losses("closure") == []
    assert losses("adversaries") == [(1, 1.0)]
    assert losses("adversaries, both first") == []
    assert losses("one loss, two optimizers") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert losses("scaled") == [(1, 3.5), (2, 2.5), (3, 1.5)]
    assert losses("scaled, a step left out") == [(1, 3.0), (2, 1.0)]
    assert losses("scaled, and changed after") == []
    assert losses("scaled by hand") == [(1, 5.0)]
    assert losses("no loss") == []
    reported = told_of(collector, "told")
    assert reported["learning_rate"] == [(1, 0.1), (2, 0.1)]
    assert reported["loss"] == [(1, 30.0), (2, 20.0)]
    assert reported["tokens"] == [(1, 7.0), (2, 7.0)]
    assert reported["accuracy"] == [(2, 2.0)]
    assert set(reported) == {"learning_rate", "loss", "tokens", "accuracy", "backward_loss"}
    for word in (
        "session.log(text=..) was given a str",
        "'step' out: this name is taken",
        "nothing=..",
        "'not a name'",
    ):
        assert output.count(word) == 1, word
    assert len(losses("bitwise")) == 20


GPU_LOOPS = """
import weakref
from vramscope.metrics.async_copies import Copies
dtypes = torch.float32, torch.float64, torch.float16, torch.bfloat16
weights = [torch.tensor([3.5], dtype=dtype).cuda().requires_grad_() for dtype in dtypes]  # (copies: no GPU need compute)
bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}
for dtype in dtypes:  # a GPU's own NaN with its sign turned, as -loss of a training that diverged is
    weights.append(torch.tensor([-1], dtype=bits[dtype.itemsize]).cuda().view(dtype).requires_grad_())
torch.cuda.set_sync_debug_mode("error")  # from here on PyTorch raises where anything would wait for the GPU
for number, weight in enumerate(weights):
    optimizer = torch.optim.SGD([weight], 0.0)
    session = agent.attach(optimizer, name=f"{weight.dtype}{' turned' * (number >= len(dtypes))}")
    for _ in range(2):
        weight.backward()
        optimizer.step()
        optimizer.zero_grad()
    session.close()

with watched("kept") as (_, model, optimizer):
    gone = []
    for _ in range(5):
        loss = of(model, 1.0)
        gone.append(weakref.ref(loss))
        loss.backward()
        del loss
        step(optimizer)
        held = held if len(gone) > 3 else torch.cuda.memory_allocated()
    assert not any(ref() for ref in gone) and torch.cuda.memory_allocated() == held, "a loss or its graph is kept"

copies = Copies()
for number in range(300):  # read one by one: whoever counts the process's tensors to find a leak finds none of ours grow
    slot = copies.begin(weights[0].detach())
    while copies.read(slot) is None:
        time.sleep(0.001)
    copies.release(slot)
assert len(copies._views) == 1, f"{len(copies._views)} views of host memory for one number at a time"
def allocations(name):
    with watched(name) as (_, model, optimizer):
        counts = []
        for _ in range(12):
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            of(model, 1.0).backward()
            step(optimizer)
            counts.append(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
        return counts
with_it = allocations("with")
os.environ["VRAMSCOPE_LOSS"] = "0"
assert with_it == allocations("without"), "reading the loss allocates on the GPU"
del os.environ["VRAMSCOPE_LOSS"]

with watched("another stream") as (_, model, optimizer):
    side = torch.cuda.Stream()
    for here in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(here):
            loss = of(model, 1.0)
        loss.backward()  # on the stream from before: there the loss may still be to come
        step(optimizer)
with watched("recorded as a graph") as (_, model, optimizer):
    of(model, 1.0).backward()
    step(optimizer)
    side = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("default")  # to begin a recording waits
    with torch.cuda.stream(side):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        of(model, 1.0).backward()
        graph.capture_end()
    step(optimizer)
with watched("told by a tensor") as (session, model, optimizer):
    session.log(loss=of(model, 1.0))
"""


@pytest.mark.gpu
def test_on_a_gpu_it_is_read_without_waiting_keeping_or_allocating_anything(collector, spool) -> None:
    output = run(
        "import math, os\nDEVICE = 'cuda'\n" + LOOPS + GPU_LOOPS, collector, spool, loop=False, EMULATED_GPU_DATA="real"
    )
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        assert told_of(collector, f"torch.{dtype}")["backward_loss"] == [(1, 3.5), (2, 3.5)], dtype
        turned = told_of(collector, f"torch.{dtype} turned")["backward_loss"]
        assert [step for step, _ in turned] == [1, 2] and all(math.isnan(loss) for _, loss in turned), dtype
    for name, steps in (("kept", [1, 2, 3, 4, 5]), ("another stream", [1]), ("recorded as a graph", [1])):
        assert [step for step, _ in told_of(collector, name)["backward_loss"]] == steps, name
    assert told_of(collector, "without") == told_of(collector, "told by a tensor") == {}
    assert output.count("session.log(loss=..) was given a Tensor on cuda:0") == 1


FRAMEWORKS = """
from transformers import Trainer, TrainingArguments
import lightning
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

class Model(nn.Module):  # its loss is the mean of what it is given, whatever its weight
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) * 0 + x).mean()}
numbers = torch.arange(24.0)

data = [{"x": x.view(1), "labels": x.view(1)} for x in numbers]
class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return None
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
    logging_steps=3, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
trainer = InOrder(model=Model(), args=arguments, train_dataset=data)
session = agent.attach(trainer, name="trainer")
trainer.train()
session.close()

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, number):
        return self.model(batch[0])["loss"]
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)
loader = DataLoader(TensorDataset(numbers.view(-1, 1)), batch_size=2)
trainer = lightning.Trainer(max_epochs=1, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1)
session = agent.attach(trainer, name="lightning")
trainer.fit(Net(), loader)
session.close()

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = Model()
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1e-3), loader)
session = agent.attach(accelerator, name="accelerate")
for (x,) in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(x)["loss"])
        optimizer.step()
        optimizer.zero_grad()
session.close()
"""


@pytest.mark.frameworks
def test_trainer_lightning_and_accelerate_tell_the_mean_of_a_steps_micro_steps(collector, spool) -> None:
    run(FRAMEWORKS, collector, spool, loop=False, CUDA_VISIBLE_DEVICES="")
    means = [(step, 4 * step - 2.5) for step in range(1, 7)]  # of four numbers in a row, from 0 on
    for name in ("trainer", "lightning", "accelerate"):
        assert told_of(collector, name)["backward_loss"] == means, name
    logged = told_of(collector, "trainer")["trainer_loss"]
    assert logged == [(3, pytest.approx(5.5)), (6, pytest.approx(17.5))]

"""Runs one training in a process of its own, with or without the agent. whole_cost.py starts it repeatedly.

    python benchmarks/cost_process.py LOOP ARM SECONDS RESULT

ARM is one of: without; default; every (detail="every"); by_hand (the user's code reads and resets the peak in each step).
The training runs until the process has used SECONDS of processor time, but for 200 steps at least. It writes one Measured as
JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from timed_trainings import gan, gpt2, layers, mlp, ppo  # beside this file

FIRST_STEPS = 200


@dataclass(frozen=True)
class Measured:
    """Times of one process, from before the agent's import on.

    first_*       seconds of the first 200 steps, import and attach included
    step_*        microseconds per step after these
    longest_ms    longest step after the first, in processor time of the training thread
    """

    steps: int
    first_wall: float
    first_cpu: float
    step_wall: float
    step_cpu: float
    longest_ms: float
    resident_mib: float
    run: str


def leaking(device: str) -> Callable[[], None]:
    """Return a step of the 20 layers whose loss stays in a list, with its graph, every twentieth time."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.zeros(64, 256, device=device)
    losses, made = [], []

    def step() -> None:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        made.append(1)
        if not len(made) % 20:
            losses.append(loss)

    step.model = model  # type: ignore[attr-defined]
    return step


def hugging_face(device: str) -> Callable[[], None]:
    """Return a step of a small language model as Hugging Face's Trainer makes it, in one training that never ends."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    begin, ended = threading.Semaphore(0), threading.Semaphore(0)
    taken = [0.0]
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64))
    rows = [{"input_ids": torch.zeros(32, dtype=torch.long), "labels": torch.zeros(32, dtype=torch.long)}] * 4096

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            begin.acquire()

        def on_step_end(self, *_: object, **__: object) -> None:
            taken[0] = time.thread_time()
            ended.release()

    words = TrainingArguments(tempfile.mkdtemp(), max_steps=10**7, per_device_train_batch_size=8, report_to=[],
                              logging_steps=10**6, save_strategy="no", disable_tqdm=True)  # fmt: skip
    trainer = Trainer(model=model.to(device), args=words, train_dataset=rows, callbacks=[Turns()])
    thread = threading.Thread(target=trainer.train, daemon=True)

    def step() -> None:
        if not thread.is_alive():
            thread.start()
        begin.release()
        ended.acquire()

    step.model = trainer  # type: ignore[attr-defined]
    step.clock = lambda: taken[0]  # type: ignore[attr-defined]
    return step


LOOPS = {
    "mlp": mlp,
    "layers": layers,
    "gpt2": gpt2,
    "trainer": hugging_face,
    "ppo": ppo,
    "gan": gan,
    "leaking": leaking,
}


def reading(step: Callable[[], None]) -> Callable[[], None]:
    def with_peak() -> None:
        step()
        torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    return with_peak


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def measured(loop: str, arm: str, seconds: float) -> Measured:
    step = LOOPS[loop]("cuda")
    model = step.model  # type: ignore[attr-defined]
    clock = getattr(step, "clock", time.thread_time)  # of the thread that trains
    wall, cpu, run = time.perf_counter(), time.process_time(), ""
    if arm in ("default", "every"):
        from vramscope import agent

        run = agent.attach(model, name=f"{loop} {arm}", detail="every" if arm == "every" else None).run_id
    elif arm == "by_hand":
        step = reading(step)
    steps, longest, first = 0, 0.0, (0.0, 0.0)
    before = time.process_time()
    while steps < FIRST_STEPS or time.process_time() - before < seconds:
        began = clock()
        step()
        steps += 1
        longest = max(longest, clock() - began) if steps > 1 else 0.0
        if steps == FIRST_STEPS:
            first = time.perf_counter() - wall, time.process_time() - cpu
            wall, cpu = time.perf_counter(), time.process_time()
    later = max(1, steps - FIRST_STEPS)
    step_wall, step_cpu = ((now - was) / later * 1e6 for now, was in
                           ((time.perf_counter(), wall), (time.process_time(), cpu)))  # fmt: skip
    size = resident_mib()
    if run:
        agent.detach()
    return Measured(steps, *first, step_wall, step_cpu, 1000 * longest, size, run)


if __name__ == "__main__" and sys.argv[1:]:
    _, name, which, budget, result = sys.argv
    Path(result).write_text(json.dumps(asdict(measured(name, which, float(budget)))))

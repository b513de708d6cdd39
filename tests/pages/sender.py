"""Makes runs that look like trainings and sends them through the real wire: for the pages' tests and benchmark.

    python tests/pages/sender.py --server http://127.0.0.1:8265 little     # a handful of runs, one of them live
    python tests/pages/sender.py --server http://127.0.0.1:8265 much       # 1000 runs, 36,000 samples, 16 ranks

Memory follows what a training does: parameters and optimizer state stay, activations climb through the forward pass
and fall through the backward pass while gradients grow; reserved is a ratchet above allocated.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series

GIB = 1 << 30
MIB = 1 << 20
PHASE = {name: code for code, name in enumerate(series.PHASES)}
# how a step divides its time
SHARES = (("data", 0.05), ("forward", 0.30), ("backward", 0.50), ("optimizer", 0.15))


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a made-up training is like. Sizes in bytes, times in seconds."""

    name: str
    project: str = "gpt2"
    tags: tuple[str, ...] = ()
    gpu: str | None = "NVIDIA H100 80GB HBM3"
    capacity: int | None = 80 * GIB
    ranks: int = 1
    step_seconds: float = 0.37
    parameters: int = int(3.1 * GIB)
    activations: int = int(21.5 * GIB)
    buffers: int = 96 * MIB
    growth: int = 0
    """Bytes that are retained after each step."""
    leaks: tuple[wire_messages.Leak, ...] | None = None
    """What a scan finds. None: the agent never scans."""
    not_scanned: str = ""
    techniques: tuple[wire_messages.Technique, ...] | None = None
    """None: the agent sends none"""
    findings: tuple[wire_messages.Pitfall, ...] = ()
    config: dict[str, wire_messages.Scalar] = field(default_factory=dict)
    allocator_settings: str | None = ""
    framework: str = "loop"
    jobs: tuple[wire_messages.Job, ...] = ()
    nvml: bool = True
    unusable: float = 0.0
    """Share of the free memory that is unusable, every two seconds. 0: no window was recorded, so it is unknown."""
    seed: int = 0
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def cuda(self) -> bool:
        return self.gpu is not None

    @property
    def device(self) -> int:
        return 0 if self.cuda else series.CPU


class Rank:
    """One process of a training: makes its numbers, and posts them as an agent would."""

    def __init__(
        self, server: str, training: Training, rank: int = 0, *, start: float | None = None, token: str | None = None
    ):
        self.training = training
        self.rank = rank
        self.start = time.time() if start is None else start
        self.session = secrets.token_hex(12)
        self.sequence = 0
        headers = {"Content-Type": wire_messages.CONTENT_TYPE} | ({"Authorization": f"Bearer {token}"} if token else {})
        self.client = httpx.Client(base_url=server, headers=headers, timeout=30, trust_env=False)
        self.random = np.random.default_rng([training.seed, rank])
        self.step = 0
        self.now = self.start
        self.reserved = 0.0

    def post(
        self, *messages: wire_messages.Message, scalars: Sequence[wire_messages.Scalars] = ()
    ) -> wire_messages.Ack:
        """Send one batch; raises where the server refuses it."""
        self.sequence += 1
        batch = wire_messages.Batch(
            wire=wire_messages.WIRE_VERSION,
            session=self.session,
            run=self.training.run,
            rank=self.rank,
            sequence=self.sequence,
            sent_ns=time.time_ns(),
            messages=list(messages),
            scalars=list(scalars),
        )
        answer = self.client.post("/api/v1/batches", content=wire_messages.encode(batch))
        if answer.is_error:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:400]}")
        return wire_messages.decode_ack(answer.content)

    def attached(self) -> wire_messages.Attached:
        training = self.training
        devices = (
            [
                wire_messages.Device(
                    index=0,
                    name=training.gpu,
                    uuid=f"GPU-{training.run[:8]}-{self.rank:04d}",
                    total_bytes=training.capacity,
                )
            ]
            if training.gpu is not None
            else [wire_messages.Device(index=series.CPU, name="CPU")]
        )
        return wire_messages.Attached(
            project=training.project,
            name=training.name,
            tags=list(training.tags),
            config=training.config,
            rank=self.rank,
            world_size=training.ranks,
            host=f"node-{self.rank // 8:02d}",
            pid=4100 + self.rank,
            start_ns=int(self.start * 1e9),
            framework=training.framework,
            devices=devices,
            python="3.11.9",
            torch="2.6.0+cu124",
            cuda="12.4" if training.cuda else None,
            driver="550.54.15" if training.nvml and training.cuda else None,
            allocator_settings=training.allocator_settings if training.cuda else None,
            git_commit="3f1c9ab27d50",
            command=["python", "train.py", "--batch-size", "32", "--dtype", "bf16"],
            agent_version="0.1.0",
            jobs=list(training.jobs),
        )

    def overhead(self) -> wire_messages.Overhead:
        return wire_messages.Overhead(
            seconds_per_step=self.training.step_seconds * 0.0011,
            fraction=0.0011,
            resolvable=self.training.seed % 2 == 0,
            noise_fraction=0.002,
            watched_steps=self.step,
            unwatched_steps=self.step // 10,
            hook_seconds=self.step * 4e-5,
            sampler_cpu_seconds=self.step * 2e-5,
        )

    def sizes(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Activations at their highest, and duration, of the next steps."""
        training = self.training
        length = self.random.beta(5, 2, steps)  # sequence lengths differ
        activations = training.activations * (0.62 + 0.38 * length)
        activations *= 1 + 0.03 * np.sin(self.rank * 2.1)
        seconds = training.step_seconds * (0.7 + 0.3 * length) * self.random.normal(1, 0.02, steps)
        return activations, np.maximum(seconds, 1e-3)

    def make(self, steps: int, interval: float = 0.1) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Columns of the next ``steps`` steps: samples (every ``interval`` seconds) and steps."""
        training = self.training
        activations, seconds = self.sizes(steps)
        numbers = self.step + 1 + np.arange(steps)
        ends = self.now + np.cumsum(seconds)
        begins = ends - seconds
        settled = numbers > 1  # optimizer state comes into being with the first step
        optimizer = np.where(settled, 2.0 * training.parameters, 0.0)
        kept = float(training.growth) * numbers
        base = training.parameters + training.buffers + optimizer + kept
        gradients = float(training.parameters)
        # the peak: early in backward, when the activations are whole and an eighth of the gradients is there; with few
        # activations, in the optimizer
        peak = base + np.maximum(activations + 0.12 * gradients, 1.4 * gradients)
        rest = (peak - base - 0.12 * gradients) * 0.015
        workspaces = np.minimum(rest, 64.0 * MIB)
        peak_reserved = np.maximum.accumulate(np.maximum(peak * 1.07, self.reserved))
        self.reserved = float(peak_reserved[-1])
        step_columns = {
            "time_ns": ends * 1e9,
            "step": numbers,
            "duration_ns": seconds * 1e9,
            "micro_steps": np.ones(steps),
            "watched": (numbers % 10 != 0).astype(float),
            "foreign_reset": np.zeros(steps),
            "agent_ns": np.full(steps, 31_000.0),
        }
        if training.cuda:
            step_columns |= {
                "peak_allocated_bytes": peak,
                "peak_reserved_bytes": peak_reserved,
                "peak_phase": np.where(self.random.random(steps) < 0.93, PHASE["backward"], PHASE["optimizer"]),
                "end_allocated_bytes": base,
                "end_reserved_bytes": peak_reserved,
                # a batch that is still referred to differs in length
                "after_step_bytes": base + 24 * MIB * self.random.beta(2, 5, steps),
                "graphs_alive": numbers * (training.growth > 0),
                "forward_peak_allocated_bytes": base + activations,
                "backward_peak_allocated_bytes": peak,
                "optimizer_peak_allocated_bytes": base + gradients * 1.4,
                "data_peak_allocated_bytes": base + 40 * MIB,
                "peak_parameters_bytes": np.full(steps, float(training.parameters)),
                "peak_gradients_bytes": np.full(steps, 0.12 * gradients),
                "peak_optimizer_bytes": optimizer,
                "peak_buffers_bytes": np.full(steps, float(training.buffers)),
                "peak_activations_bytes": (peak - base - 0.12 * gradients) * 0.985 + kept,
                "peak_workspaces_bytes": workspaces,
                "peak_other_bytes": rest - workspaces,
            }
        for phase, share in SHARES:
            step_columns[f"{phase}_ns"] = seconds * share * 1e9

        moments = np.arange(np.ceil(self.now / interval) * interval, ends[-1], interval)
        position = np.minimum(np.searchsorted(ends, moments, side="right"), steps - 1)
        part = (moments - begins[position]) / seconds[position]
        edges = np.cumsum([share for _, share in SHARES])
        phase = np.minimum(np.searchsorted(edges, part, side="right"), 3)
        inside = (part - (edges[phase] - np.array([share for _, share in SHARES])[phase])) / np.array(
            [share for _, share in SHARES]
        )[phase]
        climbing = np.select([phase == 1, phase == 2], [inside, 1 - inside], 0.0) * activations[position]
        grads = np.select([phase == 2, phase == 3], [inside, 1.0], 0.0) * gradients
        allocated = base[position] + climbing + grads
        reserved = peak_reserved[position]
        wobble = self.random.normal(0, 1, moments.size)
        samples = {
            "time_ns": moments * 1e9,
            "step": numbers[position] - 1,
            "phase": np.array([PHASE[name] for name, _ in SHARES])[phase],
            "process_rss_bytes": 5.2 * GIB + 30 * MIB * wobble + self.step * 2e4,
            "host_used_bytes": 61 * GIB + 220 * MIB * wobble,
        }
        if training.cuda:
            samples |= {
                "allocated_bytes": allocated,
                "reserved_bytes": reserved,
                "active_bytes": allocated * 1.002,
                "requested_bytes": allocated * 0.998,
                "inactive_split_bytes": (reserved - allocated) * 0.18 + 30 * MIB * np.abs(wobble),
                "segments": np.full(moments.size, 412.0),
                "alloc_retries": np.where(training.seed % 3 == 2, (numbers[position] // 90), 0),
                "ooms": np.zeros(moments.size),
            }
            if training.unusable:
                readings = (moments % 2.0 < interval) & (moments > self.start + 5)
                samples["unusable_bytes"] = np.where(readings, (reserved - allocated * 1.002) * training.unusable, -1)
            if training.nvml:
                busy = np.where(phase == 0, 35, 96) + 2 * wobble
                samples |= {
                    "device_used_bytes": reserved + 0.9 * GIB,
                    "process_device_bytes": reserved + 0.55 * GIB,
                    "gpu_utilization_percent": np.clip(busy, 0, 100),
                    "temperature_celsius": 61 + 3 * np.sin(moments / 40) + wobble * 0.3,
                    "power_milliwatts": 520_000 + 3_000 * busy + 9_000 * wobble,
                }
        self.step += steps
        self.now = float(ends[-1])
        return samples, step_columns

    def scan(self, *leaks: wire_messages.Leak, reason: str = "graphs outlive their step") -> wire_messages.Scan:
        """What the agent would tell now: the leaks given, or those of the training."""
        return wire_messages.Scan(
            time_ns=int(self.now * 1e9),
            step=self.step,
            reason=reason,
            seconds=0.084,
            tensors=14_207,
            not_scanned=self.training.not_scanned,
            leaks=list(leaks or self.training.leaks or ()),
        )

    def trained(self) -> wire_messages.Techniques:
        """Techniques, as the training says."""
        return wire_messages.Techniques(
            time_ns=int(self.now * 1e9),
            step=self.step,
            techniques=list(self.training.techniques or ()),
            findings=list(self.training.findings),
        )

    def blocks(self, samples: dict[str, np.ndarray], steps: dict[str, np.ndarray]) -> Iterator[wire_messages.Block]:
        for stream, columns in (("samples", samples), ("steps", steps)):
            rows = columns["time_ns"].size
            for start in range(0, rows, 20_000):
                end = min(rows, start + 20_000)
                yield wire_messages.Block(
                    stream=stream,  # type: ignore[arg-type]
                    device=self.training.device,
                    rows=end - start,
                    columns={
                        name: np.asarray(values[start:end]).astype("<i8").tobytes() for name, values in columns.items()
                    },
                )

    def history(self, steps: int, end: wire_messages.Ended | None = None, interval: float = 0.1) -> None:
        """A past of this number of steps, sent at once."""
        self.post(self.attached())
        for block in self.blocks(*self.make(steps, interval)):
            self.post(block)
        scans = [self.scan()] if self.training.leaks is not None else []
        trained = [self.trained()] if self.training.techniques is not None else []
        self.post(*scans, *trained, self.overhead(), *([end] if end else []))

    def ended(self, state: str = "finished", error: tuple[str, str | None] | None = None) -> wire_messages.Ended:
        """The last message, to be given to :meth:`history` (the moment is set by :meth:`finish`)."""
        return wire_messages.Ended(
            time_ns=int(self.now * 1e9),
            state=state,  # type: ignore[arg-type]
            error_type=error[0] if error else None,
            error_line=error[1] if error else None,
        )

    def finish(self, state: str = "finished", error: tuple[str, str | None] | None = None) -> None:
        self.post(self.ended(state, error))

    def live(self, stop: threading.Event, every: float = 0.2) -> None:
        """Send as the time goes by, ten samples a second, until told to stop."""
        if self.sequence == 0:
            self.post(self.attached())
        self.now = max(self.now, time.time() - every)
        held: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
        due = time.time()
        while not stop.is_set():
            until = time.time()
            while self.now < until + 1:  # make a little ahead; send what has come to pass
                held.append(self.make(1))
            messages: list[wire_messages.Message] = []
            keep = []
            for samples, steps in held:
                past, done = samples["time_ns"] <= until * 1e9, steps["time_ns"] <= until * 1e9
                messages += self.blocks(_only(samples, past), _only(steps, done))
                keep.append((_only(samples, ~past), _only(steps, ~done)))
            held = [pair for pair in keep if pair[0]["time_ns"].size or pair[1]["time_ns"].size]
            if messages:
                self.post(*messages)
            due += every
            stop.wait(max(0.0, due - time.time()))


def _only(columns: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[chosen] for name, values in columns.items()}


MARKUP = '<img src=x onerror="window.pwned=1"><b>bold</b> & %{y} </script>'

ADAMW = wire_messages.Technique(
    kind="optimizer",
    chip="AdamW fused",
    declared="optim='adamw_torch_fused'",
    observed="torch.optim.AdamW (fused)",
    detail={"state_bytes_per_parameter": 8.0, "optimizers": 1},
)
BATCH = wire_messages.Technique(
    kind="batch",
    chip="batch 32 x 512",
    declared="per_device_train_batch_size=32",
    observed="32 sequences of 512",
    detail={"batch_size": 32, "sequence_length": 512, "effective_batch_size": 32},
)
RECOMPUTED = wire_messages.Technique(
    kind="gradient_checkpointing",
    chip="checkpointing",
    declared="activation_checkpointing=True",
    observed="recomputed in backward: 12 GPT2Block (transformer.h.0 to transformer.h.11); variant: non-reentrant",
    detail={"blocks": 12, "variant": "non-reentrant"},
)
NOT_RECOMPUTED = wire_messages.Technique(
    kind="gradient_checkpointing", chip="checkpointing", declared="activation_checkpointing=True", observed=""
)
AUTOCAST = wire_messages.Technique(
    kind="mixed_precision",
    chip="bf16",
    declared="bf16=True",
    observed="autocast to bfloat16 in 120 of 124 module calls",
    detail={"dtype": "bfloat16", "scaler": False, "autocast": True},
)
WAITING = wire_messages.Technique(
    kind="attention", chip="attention sdpa", declared="attn_implementation='sdpa'", observed=None
)
IN_EVAL_MODE = wire_messages.Pitfall(
    kind="checkpointing-not-seen",
    text="activation_checkpointing=True, but nothing was recomputed in 3 observed steps: the model is in eval mode, and its "
    "blocks checkpoint in training mode only. No memory is saved.",
    advice="call model.train() before the loop, and again after each evaluation",
    first_step=5,
)
LATE_BINDING = wire_messages.Pitfall(
    kind="checkpoint-closure",
    text="This checkpointed function reads 'block' from the enclosing code. In 11 checkpoints of a step 'block' had changed "
    "when backward ran the function again, and another module was called. Gradients are wrong, without an error.",
    advice="bind it when the function is created, lambda x, block=block: ...",
    file="/home/ada/gpt2/model_with_checkpoints.py",
    line=87,
    first_step=2,
)

BASELINE = Training(
    name="baseline-fp32",
    tags=("sweep",),
    run="ba5e11e000000001",
    unusable=0.3,
    techniques=(ADAMW, BATCH),
    config={"batch_size": 32, "dtype": "fp32", "lr": 3e-4, "model.layers": 12},
)
CHECKPOINTING = dataclasses.replace(
    BASELINE,
    name="bf16-checkpointing",
    tags=("sweep", "ckpt"),
    run="c4ec000000000001",
    techniques=(RECOMPUTED, AUTOCAST, ADAMW, BATCH, WAITING),
    seed=1,
    activations=int(7.4 * GIB),
    step_seconds=0.49,
    config={**BASELINE.config, "dtype": "bf16", "gradient_checkpointing": True},
)
BF16 = dataclasses.replace(
    BASELINE,
    name="bf16",
    run="bf16000000000001",
    unusable=0.0,
    seed=2,
    activations=int(12.1 * GIB),
    step_seconds=0.28,
    allocator_settings="expandable_segments:True",
    config={**BASELINE.config, "dtype": "bf16"},
)
TOO_LARGE = dataclasses.replace(
    BASELINE,
    name="batch-128",
    run="00a1000000000001",
    techniques=(NOT_RECOMPUTED, ADAMW, BATCH),
    findings=(IN_EVAL_MODE, LATE_BINDING),
    seed=3,
    activations=int(58 * GIB),
    config={**BASELINE.config, "batch_size": 128},
)
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError",
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB, 1.42 GiB is free.",
)
HOSTILE = Training(
    name=MARKUP,
    project="<i>markup</i>",
    tags=("<u>tag</u>",),
    run="badbadbad0000001",
    techniques=(wire_messages.Technique(kind="optimizer", chip=MARKUP, declared=MARKUP, observed=MARKUP),),
    findings=(wire_messages.Pitfall(kind="trap", text=MARKUP, advice=MARKUP, file=MARKUP, line=1),),
    seed=4,
    config={"<script>": "<b>1</b>"},
)
ON_CPU = Training(
    name="mlp on the cpu",
    project="toys",
    gpu=None,
    capacity=None,
    step_seconds=0.02,
    run="c0000000c0000001",
    seed=5,
)
HISTORY = wire_messages.Leak(
    kind="growing",
    name="history",
    holder="local 'history' of train() -> list[900]",
    chain=["train.py:87 in train()", "local 'history'", "list[900]", "tensor float32[] with grad_fn=NllLossBackward0"],
    file="/home/ada/gpt2/train.py",
    line=87,
    function="train",
    count=900,
    first_step=40,
    last_step=900,
    age_steps=899,
    held_bytes=900 * 22 * MIB,
    exclusive_bytes=900 * 22 * MIB,
    node_bytes=900 * 612 * 480,
    growth_bytes_per_step=22.0 * MIB,
    peak_effect_bytes=899 * 22 * MIB,
    peak_effect="the peak is in backward, when all graphs but the newest were alive and not needed",
    advice="history.append(loss.item())",
    examples=["900 x float32[] on cuda:0", "10800 x bfloat16[32, 512, 768] on cuda:0, saved by the graphs"],
)
OUTPUT = wire_messages.Leak(
    kind="overlap",
    name="logits",
    holder="local 'logits' of train()",
    chain=["train.py:71 in train()", "local 'logits'", "tensor bfloat16[32, 512, 50257]"],
    file="/home/ada/gpt2/train.py",
    line=71,
    function="train",
    count=1,
    first_step=40,
    last_step=900,
    age_steps=1,
    held_bytes=1571 * MIB,
    exclusive_bytes=1571 * MIB,
    peak_effect_bytes=0,
    peak_effect="the peak is in backward, when the new logits already replaced the old",
    advice="del logits  # after loss.backward()",
    examples=["1 x bfloat16[32, 512, 50257] on cuda:0"],
)
CACHE = wire_messages.Leak(
    kind="tensor-growth",
    name=MARKUP,
    holder="a list in a closure",
    count=12,
    first_step=300,
    last_step=900,
    held_bytes=12 * MIB,
    exclusive_bytes=12 * MIB,
    advice="keep .cpu() of it",
)
LEAKY = dataclasses.replace(
    BASELINE,
    name="total-loss",
    run="1ea4000000000001",
    seed=8,
    growth=22 * MIB,
    leaks=(HISTORY, OUTPUT, CACHE),
    not_scanned="3 of 41 holders: 250 ms were over",
)
FIXED = dataclasses.replace(LEAKY, name="total-loss-fixed", run="1ea4f1ed00000001", growth=0, leaks=(), not_scanned="")
EIGHT = Training(
    name="ddp-8",
    project="llama",
    ranks=8,
    run="dd00000000000008",
    seed=6,
    step_seconds=0.8,
    jobs=(
        wire_messages.Job(
            manager="slurm",
            id="4249",
            name="sweep",
            array="4242_7",
            partition="a100",
            node="node-00",
            nodes="node-[00-01]",
        ),
        wire_messages.Job(manager="torchrun", node_count=2, restarts=1),
    ),
)


def past(
    server: str,
    training: Training,
    *,
    hours: float,
    steps: int,
    state: str | None = "finished",
    error: tuple[str, str | None] | None = None,
    ranks: int | None = None,
    token: str | None = None,
) -> Training:
    """A run that began this many hours ago. ``state`` None: it never ends properly. ``ranks``: the number that report."""
    for number in range(training.ranks if ranks is None else ranks):
        rank = Rank(server, training, number, start=time.time() - hours * 3600, token=token)
        rank.history(steps)
        if state:
            rank.finish(state, error)
        rank.client.close()
    return training


def little(server: str, token: str | None = None) -> list[Training]:
    """A handful of runs of all kinds, ended in the last hours. Returns them; the first is a good baseline."""
    return [
        past(server, BASELINE, hours=5.2, steps=900, token=token),
        past(server, CHECKPOINTING, hours=4.1, steps=900, token=token),
        past(server, BF16, hours=3.0, steps=1200, token=token),
        past(server, TOO_LARGE, hours=2.2, steps=40, state="failed", error=OUT_OF_MEMORY, token=token),
        past(server, HOSTILE, hours=1.5, steps=60, token=token),
        past(server, ON_CPU, hours=1.1, steps=400, token=token),
        past(server, LEAKY, hours=0.8, steps=900, token=token),
        past(server, FIXED, hours=0.7, steps=900, token=token),
        past(server, EIGHT, hours=0.9, steps=300, ranks=7, token=token),
    ]


def thousand(server: str, token: str | None = None, runs: int = 1000) -> None:
    """As many short runs, over the last weeks, of several projects and cards."""
    now = time.time()
    random = np.random.default_rng(7)
    for number in range(runs):
        training = Training(
            name=f"sweep-{number:04d}",
            project=f"project-{number % 9}",
            tags=(f"lr{number % 5}",),
            run=f"5eeb{number:012x}",
            seed=number,
            gpu=("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090")[number % 3],
            capacity=(80 * GIB, 40 * GIB, 24 * GIB)[number % 3],
            parameters=(3 * GIB, 2 * GIB, 1 * GIB)[number % 3],
            activations=int(random.uniform(2, (60, 30, 18)[number % 3]) * GIB),
            step_seconds=float(random.uniform(0.1, 2)),
        )
        rank = Rank(server, training, start=now - 86400 * 20 + number * 1500, token=token)
        samples, steps = rank.make(30, 1.0)
        end = rank.ended("failed", ("RuntimeError", "loss is NaN")) if number % 11 == 0 else rank.ended()
        rank.post(rank.attached(), *rank.blocks(samples, steps), rank.overhead(), end)
        rank.client.close()


def much(server: str, token: str | None = None) -> None:
    """1000 runs in the list, one run of 36,000 samples, one of 16 ranks."""
    thousand(server, token)
    hour(server, token)
    past(
        server,
        Training(name="fsdp-16", project="llama", ranks=16, run="f5d0000000000016", step_seconds=0.6),
        hours=2,
        steps=500,
    )


def hour(server: str, token: str | None = None) -> Training:
    """One run of an hour at ten samples a second: 36,000 samples."""
    training = Training(name="one hour", project="gpt2", run="0000000000036000", step_seconds=3.7 / 0.91, seed=36)
    rank = Rank(server, training, start=time.time() - 3700, token=token)
    rank.history(round(3600 / 3.7))
    rank.finish()
    return training


def live(server: str, stop: threading.Event, ranks: int = 1, token: str | None = None, **changes: Any) -> Training:
    """A training that runs until ``stop``: one thread a rank. Returns at once."""
    training = Training(**{"name": "live", "project": "gpt2", "ranks": ranks, "step_seconds": 0.37} | changes)
    for number in range(ranks):
        rank = Rank(server, training, number, token=token)
        rank.post(rank.attached())
        threading.Thread(target=rank.live, args=(stop,), daemon=True).start()
    return training


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--server", default="http://127.0.0.1:8265")
    arguments.add_argument("--token")
    arguments.add_argument("--ranks", type=int, default=1)
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("scene", choices=["little", "much", "live", "hour"])
    given = arguments.parse_args()
    if given.scene == "live":
        stop = threading.Event()
        live(given.server, stop, given.ranks, given.token)
        with contextlib.suppress(KeyboardInterrupt):
            stop.wait(given.seconds)
        stop.set()
        return
    {"little": little, "much": much, "hour": hour}[given.scene](given.server, given.token)


if __name__ == "__main__":
    main()

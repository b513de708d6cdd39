"""Random scripts for the allocator: settings, a device, and what is asked of it, all from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
EDGES = [1, 511, 512, 513, 1024, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 512, 10 * MIB - 1]
EDGES += [10 * MIB, 10 * MIB + 1, 19 * MIB, 20 * MIB, 20 * MIB + 1, 21 * MIB, 32 * MIB, 40 * MIB, 64 * MIB, 128 * MIB]

Step = tuple[Any, ...]


@dataclass
class Script:
    """What a run is made of."""

    seed: int
    conf: str
    total_mib: int
    fraction: float | None
    streams: int
    async_us: int
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"conf={self.conf!r} total_mib={self.total_mib} fraction={self.fraction} streams={self.streams}"
        return f"{head} async_us={self.async_us}\n" + "\n".join(f"    {step}" for step in self.steps)


def draw(seed: int, events: int = 2500, newer_keys: tuple[str, ...] = ()) -> Script:
    """A script of this number of operations on the allocator; the same for the same seed."""
    luck = random.Random(seed)
    script = Script(
        seed=seed,
        conf=_conf(luck, newer_keys),
        total_mib=luck.choice([luck.randrange(700, 3000), luck.randrange(1000, 9000), 81079]),
        fraction=luck.choice([None, None, round(luck.uniform(0.05, 0.9), 3)]),
        streams=luck.choice([1, 1, 2, 3, 5]),
        async_us=luck.choice([0, 3000]),
    )
    pools = [0] * luck.choice([1, 4]) + luck.choice([[], [1], [1, 2]])
    next_pool = 3
    capacity = (script.total_mib - 520) * MIB * (script.fraction or 1)
    target = capacity * luck.choice([0.3, 0.7, 0.9, 1.2])
    size_of = _sizes(luck, capacity)
    records = luck.choice([0, 0.05, 0.3]) if script.streams > 1 else 0
    lifo = luck.random()
    live: dict[int, int] = {}
    pool_of: dict[int, int] = {}
    items = 0
    while len(script.steps) < events:
        dice = luck.random()
        if dice < 0.002:
            script.steps.append(("empty",))
        elif dice < 0.004:
            script.steps.append(("wait",))
        elif dice < 0.006 and any(pools):
            gone = luck.choice([pool for pool in pools if pool])
            if "expandable_segments:True" in script.conf and gone in pool_of.values():
                continue  # PyTorch counts wrongly there, and forgets a pool that is in use (see POOL_MISCOUNT)
            script.steps.append(("drop_pool", gone))
            pools = [next_pool if pool == gone else pool for pool in pools]
            next_pool += 1
        elif live and (sum(live.values()) > target or luck.random() < 0.46):
            item = luck.choice(list(live)) if luck.random() < lifo else next(reversed(live))
            del live[item], pool_of[item]
            script.steps.append(("free", item))
        else:
            size = size_of()
            live[items], pool_of[items] = size, luck.choice(pools)
            script.steps.append(("alloc", items, size, luck.randrange(script.streams), pool_of[items]))
            if luck.random() < records:
                script.steps.append(("record", items, luck.randrange(script.streams)))
            items += 1
    return script


def _sizes(luck: random.Random, capacity: float) -> Any:
    """Draws sizes: of every class, with some that come again and again, as in a training."""
    most = max(30 * MIB, min(capacity / luck.choice([3, 8, 20]), 2000 * MIB))
    weights = [luck.random() for _ in range(5)]
    usual = [int(2 ** luck.uniform(9, 27)) for _ in range(luck.choice([3, 12]))]

    def size() -> int:
        [kind] = luck.choices(range(5), weights)
        if kind == 0:
            return int(2 ** luck.uniform(0, 20.2))
        if kind == 1:
            return luck.choice(EDGES)
        if kind == 2:
            return luck.choice(usual)
        if kind == 3:
            return luck.randrange(MIB, 12 * MIB)
        return luck.randrange(10 * MIB, int(most))

    return size


def _conf(luck: random.Random, newer_keys: tuple[str, ...]) -> str:
    keys = []
    segment = 20
    if luck.random() < 0.25:
        segment = luck.choice([12, 16, 22, 32, 64])
        keys.append(f"large_segment_size_mb:{segment}")
    if luck.random() < 0.45:
        keys.append(f"max_split_size_mb:{luck.choice([segment, segment + 5, 64, 100, 200])}")
    if luck.random() < 0.3:
        keys.append(f"max_non_split_rounding_mb:{luck.choice([segment, 64, 128])}")
    if luck.random() < 0.4:
        keys.append(f"garbage_collection_threshold:{luck.choice([0.1, 0.3, 0.6, 0.8, 0.95])}")
    if luck.random() < 0.4:
        keys.append(f"expandable_segments:{luck.choice(['True', 'True', 'False'])}")
    if luck.random() < 0.3:
        keys.append(f"roundup_power2_divisions:{luck.choice(['1', '2', '4', '8', '[2:4,16:2,64:8,>:1]', '[1:2,>:4]'])}")
    if luck.random() < 0.15:
        keys.append(f"per_process_memory_fraction:{luck.choice([0.3, 0.5, 0.8])}")
    if "throw_on_cudamalloc_oom" in newer_keys and luck.random() < 0.1:
        keys.append("throw_on_cudamalloc_oom:True")
    if "expandable_segments_reserve" in newer_keys and luck.random() < 0.3:
        keys.append(f"expandable_segments_reserve:{luck.choice(['0.4', '0.1', '0.02', '1G', '0.5g', '3', 'nothing'])}")
    luck.shuffle(keys)
    return ",".join(keys)

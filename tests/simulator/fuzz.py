"""A long comparison of the simulator with the real allocator, on any version of torch.

    python tests/simulator/fuzz.py [--python VENV/bin/python] [--seconds 600] [--runs N] [--first SEED]

``--python`` runs the allocator: an interpreter with torch, on the emulated GPU (tests/emulated_gpu/build.py). Ends with
status 1 at the first difference, after printing its seed and a shrunk script.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from comparison import difference, oracle, shrunk
from scripts import draw


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--events", type=int, default=2500)
    parser.add_argument("--first", type=int, default=None, help="seed of the first run; default: a random one")
    arguments = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if arguments.first is None else arguments.first
    end = time.monotonic() + arguments.seconds
    counts: Counter[str] = Counter()
    with oracle(arguments.python) as asked:
        print(f"torch {asked.version}, profile {asked.profile.name} {asked.note}", flush=True)
        while counts["runs"] < arguments.runs and time.monotonic() < end:
            script = draw(first + counts["runs"], arguments.events, asked.profile.newer_keys)
            counts["runs"] += 1
            if changes := difference(script, asked):
                print(f"seed {script.seed}: {changes}\n{script.conf}", flush=True)
                shorter = shrunk(script, asked)
                print(f"shrunk to {len(shorter.steps)} steps:\n{shorter}\n{difference(shorter, asked)}", flush=True)
                return 1
    print(f"{counts['runs']} runs of {arguments.events} operations from seed {first}: no difference", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Records golden results, or compares with them.

python tests/golden/record.py [AREA...]            # rewrites the files of these areas in tests/golden/data; default: of all
python tests/golden/record.py --check [AREA...]    # rewrites nothing; prints each difference and exits with 1 where there is one
python tests/golden/record.py --check --facts ...  # the same, without the sentences
python tests/golden/record.py --sentences [AREA..] # after a new wording: rewrites the sentences of entries whose facts are the same

To record, each area is computed three times: a value that varies between the three is masked, and what was masked before stays
so (delete the file of an area to begin without). An area is ``leaks``, ``deaths``,
``held_out``, ``whatif``, ``anatomy``, ``tables`` or ``api``. Record with the code whose behaviour is to be kept; README.md says
what is covered and how long each takes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
os.environ.setdefault("EMULATED_GPU_LEDGER", "private")
os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in [name for name in os.environ if name.startswith("VRAMSCOPE_")]:
    del os.environ[_name]

from files import MASK, MOST_SHOWN, agreed, as_text, differences, record, record_sentences, recorded  # noqa: E402

AREAS = ("leaks", "deaths", "held_out", "whatif", "anatomy", "tables", "api")


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; default: all")
    words.add_argument("--check", action="store_true", help="compare, and rewrite nothing")
    words.add_argument("--facts", action="store_true", help="with --check: leave out the sentences")
    words.add_argument(
        "--sentences", action="store_true", help="rewrite the sentences of entries whose facts are the same"
    )
    words.add_argument("--runs", type=int, default=3, help="what differs between this many runs is masked (default: 3)")
    asked = words.parse_args()
    if unknown := set(asked.areas) - set(AREAS):
        words.error(f"{', '.join(sorted(unknown))}: not of {', '.join(AREAS)}")
    found = 0
    for name in asked.areas or AREAS:
        began = time.monotonic()
        module = importlib.import_module(f"area_{name}")
        if asked.check or asked.sentences:  # (what depends on time has a check of its own, which tries again)
            runs = [getattr(module, "check", module.compute)()]
        else:
            runs = [module.compute() for _ in range(asked.runs)]
        for area in runs[0]:
            if asked.check or asked.sentences:
                lines = differences(area, runs[0][area], facts_only=asked.facts or asked.sentences)
                found += len(lines)
                if asked.sentences:
                    record_sentences(area, runs[0][area])
                print(f"{area}: {len(runs[0][area].facts)} entries, {len(lines)} differences", flush=True)
                print("".join(f"  {line}\n" for line in lines[:MOST_SHOWN]), end="", flush=True)
            else:
                result = agreed([run[area] for run in runs])
                record(area, result)
                masks = as_text(recorded(area).facts).count(f'"{MASK}"')
                print(f"{area}: {len(result.facts)} entries recorded, {masks} values masked", flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

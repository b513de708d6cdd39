"""Programs whose answer is not right yet, with the score that they get. Whoever mends one removes its line."""

from __future__ import annotations

from typing import Final

KNOWN_FAULTS: Final[dict[str, str]] = {
    "02_metric_never_reset": "partly",
    "06_sorted_batches": "wrong",
    "10_ppo_cycle_gc_off": "partly",
    "16_resume_no_room": "wrong",
    "18_custom_op_ctx": "partly",
    "26_attribution_leftovers": "silent",
    "32_last_error_kept": "silent",
}

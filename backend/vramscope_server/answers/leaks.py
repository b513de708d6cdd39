"""Leaks of a run."""

from __future__ import annotations

from typing_extensions import TypedDict

from vramscope_server.answers.shared_parts import Damage


class LeakTransition(TypedDict):
    """One change of a leak's state."""

    state: str
    """State of the holder, as in the wire contract."""
    reason: str
    """Reason for it, as in the wire contract."""
    step: int
    """Step of the scan that changed it."""


class Leak(TypedDict):
    """Memory from earlier iterations that a variable retains."""

    id: str
    """Identifier; it stays the same as long as kind, name, file and line do."""
    kind: str
    """Kind of the leak, as in the wire contract."""
    name: str
    """Name of the variable that retains the memory."""
    holder: str
    """Kind of that variable."""
    chain: list[str]
    """Names on the path from the variable to the tensors."""
    file: str | None
    """Source file in which the variable receives the memory."""
    line: int | None
    """Source line."""
    function: str | None
    """Function of that line."""
    count: int
    """Number of objects that are retained."""
    first_step: int
    """Step in which the leak was found first."""
    last_step: int
    """Step in which it was found last."""
    age_steps: int | None
    """Age of the oldest retained object, in steps."""
    held_bytes: int
    """Memory that is retained."""
    exclusive_bytes: int
    """Part of it that no other holder retains."""
    node_bytes: int
    """Part of it that belongs to autograd nodes."""
    growth_bytes_per_step: float | None
    """Growth of the retained memory, in bytes per step."""
    per: str
    """Iteration in which the leak grows."""
    emptied_at: str | None
    """Source line that empties the container; empty if none is known."""
    emptied_after: int | None
    """Number of iterations after which the container is emptied."""
    full_bytes: int | None
    """Memory that the container retains once it is full; null if it has no bound."""
    peak_effect_bytes: int | None
    """Bytes by which the peak falls when the memory is freed."""
    peak_effect: str
    """Explanation of that effect."""
    advice: str
    """Proposed change."""
    source: str
    """Text of the source line; empty if it is unknown."""
    fixed: list[str]
    """Lines that take its place after the change; empty where the line alone does not tell."""
    examples: list[str]
    """Some of the retained tensors."""
    why: list[LeakTransition]
    """States of the holder from the first scan that saw it to the report, oldest first."""
    on_host: bool
    """Whether only host memory is retained, although the training uses a device."""
    note: bool
    """Whether it has a bound and raises the peak by little: no leak, but listed."""
    ranks: list[int]
    """Ranks that have the leak; figures are the largest of any of them."""


class LeakInWords(Leak):
    """A leak with sentences for the page."""

    kind_words: str
    """Kind of the leak in words."""
    emptied: str
    """Description of how and when the container is emptied; empty if nothing is known."""


class LeakVerdict(TypedDict):
    """Judgement over all leaks and the memory after each step."""

    level: str
    """`leak`, `growth`, `none` or `unknown`."""
    sentence: str
    """The judgement in words."""


class LeakScan(TypedDict):
    """The newest scan of a rank."""

    rank: int
    """Number of the rank."""
    time_seconds: float | None
    """Time of the scan, since 1970."""
    step: int
    """Number of steps that had finished."""
    reason: str
    """Cause of the scan."""
    seconds: float
    """Duration of the scan."""
    tensors: int
    """Number of tensors that were examined; 0 if memory gave no reason to scan."""
    not_scanned: str
    """Explanation of what was left out; empty if nothing was."""
    leaks: int
    """Number of leaks that it found."""


class Floor(TypedDict):
    """Memory after each step, on one rank and device, and its trend.

    The slope is the median of the slopes between the lowest values of parts of the window (Theil-Sen). Below 24 steps nothing is
    estimated.
    """

    rank: int
    """Number of the rank."""
    device: int
    """Index of the device."""
    steps: int | None
    """Number of steps in the window."""
    first_step: int | None
    """First step of the window."""
    last_step: int | None
    """Last step of the window."""
    slope_bytes_per_step: float | None
    """Growth of the memory after each step, in bytes per step."""
    slope_low_bytes_per_step: float | None
    """Lower end of the confidence interval of that slope, in bytes per step."""
    slope_high_bytes_per_step: float | None
    """Upper end of the confidence interval of that slope, in bytes per step."""
    smallest_detectable_bytes_per_step: float | None
    """Smallest growth that exceeds the scatter, in bytes per step."""
    growing: bool | None
    """Whether the slope exceeds the scatter and each quarter of the window rises; null if it rises only in a few jumps, or more and
    more slowly."""
    capacity_bytes: int | None
    """Memory of the device."""
    outside_bytes: int | None
    """Device memory outside PyTorch: CUDA's context and other processes."""
    room_bytes: int | None
    """Capacity minus memory outside PyTorch minus the highest peak of the newest tenth of the steps."""
    steps_to_out_of_memory: float | None
    """Number of steps until the memory runs out at this rate; null if it does not grow."""
    steps_to_out_of_memory_at_least: float | None
    """The same at the upper end of the slope."""
    seconds_to_out_of_memory: float | None
    """Time until the memory runs out at this rate."""
    damaged: list[Damage]
    """Rows that cannot be read."""
    ran_out_step: int | None
    """Step in which the run ended with an out-of-memory error."""


class LeakReport(TypedDict):
    """Leaks of a run."""

    run_id: str
    """Identifier of the run."""
    name: str
    """Name of the run."""
    state: str
    """State of the run."""
    verdict: LeakVerdict
    """Judgement."""
    leaked_bytes: int | None
    """Device memory that the findings retain together, on the rank with most of it; notes are left out."""
    worst_leak: str | None
    """Kind of the worst leak."""
    graphs_alive: int | None
    """Number of autograd graphs from earlier steps that were alive after the newest step."""
    leaks: list[LeakInWords]
    """Leaks, worst first."""
    scans: list[LeakScan]
    """Newest scan of each rank."""
    floor: Floor
    """Memory after each step."""


class FixEffect(TypedDict):
    """Effect of fixing a leak on a recorded step, by replay."""

    step: int | None
    """Step that was replayed."""
    begin_event: int
    """First event of that step."""
    end_event: int
    """End of that step, not included."""
    allocations: int
    """Number of allocations that the leak retains."""
    held_bytes: int
    """Memory that the leak retains in the recording."""
    peak_allocated_bytes: int
    """Peak of allocated memory as recorded."""
    peak_allocated_after_bytes: int
    """The same after the fix."""
    peak_reserved_bytes: int
    """Peak of reserved memory as recorded."""
    peak_reserved_after_bytes: int
    """The same after the fix."""
    peak_reserved_after_band: tuple[int, int]
    """Lowest and highest value of it, in bytes, over what is unknown."""
    phase: str | None
    """Phase of the recorded peak."""
    phase_after: str | None
    """Phase of the peak after the fix."""
    alive_bytes: int
    """Retained memory that is alive at the recorded peak."""
    words: str
    """The effect in words."""
    saved_bytes: int
    """Bytes by which the allocated peak falls."""


class LeakReplay(TypedDict):
    """Effect of fixing a leak, from the newest recording that shows it."""

    run_id: str
    """Identifier of the run."""
    leak: str
    """Identifier of the leak."""
    recording: str | None
    """Recording that was replayed."""
    rank: int | None
    """Rank of the recording."""
    effect: FixEffect | None
    """Effect of the fix; null if no recording shows it."""
    reason: str
    """Reason why there is no effect; empty if there is one."""

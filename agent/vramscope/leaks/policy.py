"""Thresholds by which the leak detector decides: one dataclass, one sentence on each.

An iteration is an optimizer step; where nothing trains it is a batch or a call of a model. Bounds on the cost of a scan
(objects, nodes, seconds) are not here: they belong to the module that they protect. ``tests/leaks/ablation.py`` halves and
doubles each value over the labelled loops; ``tests/leaks/ABLATION.md`` says which verdicts change.
"""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class LeakPolicy:
    """Every threshold of a verdict, with what breaks when it is raised or lowered."""

    # -- when to scan ----------------------------------------------------------------------------------------------------

    scan_at: frozenset[int] = frozenset((3, 7, 11, 15, 21, 29, 41, 59, 99, 199, 399, 999, 9_999, 99_999))
    """Iterations with a scan in any case. Fewer: short runs get no verdict. More: more time in scans."""
    always_scan_until: int = 7
    """Later ones are left out while a scan found nothing and the allocator has no more blocks since. Higher: more time in scans.
    Lower: graphs that no backward pass uses are missed."""
    not_at_calls: frozenset[int] = frozenset((3, 11, 15, 29))
    """Of these, iterations without a scan where an iteration is a call. Fewer: more time in scans of short inference runs."""
    last_early_scan: int = 16
    """No suspicion is followed before this iteration. Higher: late reports. Lower: scans on warm-up noise."""
    suspicion_pause: int = 4
    """Least iterations between two suspicions. Higher: late reports. Lower: more time in scans."""
    suspicion_pause_share: float = 1 / 4
    """The same as a share of all iterations. Higher: late reports. Lower: long runs spend more time in scans."""
    rescan_iterations: int = 8
    """Least iterations until reported growth is checked again. Higher: late withdrawals. Lower: more time in scans."""
    rescan_share: float = 1 / 4
    """The same as a share of all iterations. Higher: late withdrawals. Lower: long runs spend more time in scans."""
    old_graphs: int = 6
    """Iterations in a row that keep a graph before a scan. Higher: late reports. Lower: scans on harmless overlap."""
    dropped_graphs: int = 3
    """Graphs without a backward in a row that suggest an evaluation. Higher: missed. Lower: two forwards a step look like one."""
    operations_of_a_graph: int = 2
    """Autograd operations between two batches that count as a graph. Higher: small models are missed. Lower: none is needed."""
    evaluation_rescan: int = 6
    """Least graphs between two scans of an evaluation with graphs. Higher: late growth. Lower: more time in scans."""
    evaluation_rescan_share: float = 1 / 2
    """The same as a share of the graphs so far. Higher: late growth. Lower: long evaluations spend more time in scans."""
    recent_steps: int = 16
    """Optimizer steps after which an optimizer that did not step counts as retired. Higher: old folds count as the model. Lower:
    optimizers that step rarely are retired."""
    unstepped_backwards: int = 512
    """Backwards without a step from which weights count as updated by hand. Higher: manual updates are judged late. Lower: long
    gradient accumulation looks like a leak."""

    # -- memory after each step ------------------------------------------------------------------------------------------

    baseline_window: int = 4
    """Values per scale whose lowest counts. Higher: growth is suspected later. Lower: noise causes scans."""
    baseline_rises: int = 3
    """Lowest values in a row that must rise. Higher: growth is suspected later. Lower: noise causes scans."""
    baseline_rise_bytes: int = 32 * 1024
    """Least rise between two of them. Higher: slow leaks are not suspected. Lower: noise causes scans."""

    # -- what is worth a report ------------------------------------------------------------------------------------------

    material_bytes: int = 64 * 1024
    """Least bytes of a holder that does not grow. Higher: small overlaps are missed. Lower: reports that save nothing."""
    material_share: float = 0.01
    """The same as a share of all live tensors. Higher: overlaps are missed. Lower: reports that save nothing."""
    considerable_bytes: int = 256 * 1024
    """From here on a container that may yet be emptied is reported at once. Higher: reported late. Lower: reported before it is
    known to be emptied."""
    considerable_share: float = 0.1
    """The same as a share of all live tensors, with the same effects."""
    plain_bytes: int = 16 * 1024
    """Least bytes without a graph for a holder to be described. Higher: small statistics are missed. Lower: slower scans."""
    large_buffer_bytes: int = 64 * 1024
    """From here on a module's buffer may be a leak. Higher: growing buffers are missed. Lower: running statistics are scanned."""
    untrained_models: int = 3
    """Models of one holder that no optimizer trains, from which on they are copies. Higher: kept models are missed. Lower: a
    teacher and a target network are reported."""

    # -- graphs ----------------------------------------------------------------------------------------------------------

    many_graphs: int = 3
    """Number of different ages that make a collection.

    Higher: short lists are missed. Lower: the last and the best result look like a list.
    """
    collection_ages: int = 6
    """Ages of graphs from which one scan suffices. Higher: reported a scan later. Lower: false alarms on short windows."""
    certain_iterations: int = 12
    """Iterations without a release from which one scan suffices. Higher: reported later. Lower: accumulation is reported."""
    graph_growth_iterations: int = 8
    """Iterations over which graphs must grow. Higher: reported later. Lower: buffers that are emptied now and then are reported."""
    graph_growth_scans: int = 3
    """Scans over which graphs must grow. Higher: reported later. Lower: false alarms."""
    evaluation_growth_iterations: int = 3
    """Batches of an evaluation over which graphs must grow. Higher: short evaluations are missed. Lower: false alarms."""
    evaluation_growth_scans: int = 2
    """Scans of an evaluation over which graphs must grow. Higher: short evaluations are missed. Lower: false alarms."""
    chain_iterations: int = 4
    """Iterations that one variable's graph must reach back. Higher: reported later. Lower: a loss of two steps is reported."""
    chain_growth_iterations: int = 7
    """The same in the second of two scans. Higher: reported later. Lower: truncated backpropagation is reported."""
    chain_start_iterations: int = 2
    """The same in the first of two scans. Higher: reported later. Lower: any result looks like the start of a chain."""
    old_graphs_of_unsure_age: int = 12
    """Graphs of earlier steps that stand for age where sequence numbers are unreliable. Higher: create_graph leaks are missed on
    a GPU. Lower: false alarms there."""
    bounded_graphs: int = 1_000
    """Largest bound of a container whose graphs are intended. Higher: replay buffers of graphs are missed. Lower: truncated
    backpropagation through long windows is reported."""

    # -- growth and its end ----------------------------------------------------------------------------------------------

    tensor_growth_iterations: int = 12
    """Iterations over which plain tensors must grow. Higher: reported later. Lower: caches that fill up are reported."""
    tensor_growth_scans: int = 4
    """Scans over which plain tensors must grow. Higher: reported later. Lower: caches that fill up are reported."""
    model_growth_scans: int = 3
    """The same where whole models with their optimizers are kept, of finished folds say: a scan sees a new one rarely. Higher:
    missed in short runs. Lower: an ensemble of three models is reported."""
    container_tensors: int = 3
    """Tensors from which a container grows by number, not by size. Higher: short lists are missed. Lower: pairs are lists."""
    drained_patience: int = 2
    """Factor on the iterations where the code also removes entries. Higher: reported later. Lower: bounded queues are reported."""
    filling_iterations: int = 192
    """Iterations for which a container that may fill up is not reported before the run ends: a cache by key, a pool with a limit in
    the code. Higher: reported later. Lower: reported before it is full."""
    call_patience: int = 4
    """Factor where an iteration is a call. Higher: reported later. Lower: one generation of text or images is reported."""
    inference_patience: int = 10_000
    """Calls or batches without a training for which growth is not reported before the run ends: they may compute the data of a
    training, or the tokens of one text. Higher: a server's leak is reported later. Lower: such data are reported."""
    model_cache_calls: int = 800
    """Calls in which a model's own cache may grow. Higher: unbounded caches are reported later. Lower: key-value caches are."""
    least_rise: int = 2
    """Tensors or graphs by which a holder must grow. Higher: slow growth is reported later. Lower: one more tensor is growth."""
    recent_share: float = 1 / 6
    """Share of the iterations that counts as recent. Higher: a stop is seen later. Lower: noise looks like a stop."""
    recent_pace: float = 3 / 4
    """Least recent pace, as a share of the whole. Higher: growth in bursts is missed. Lower: caches that fill up are reported."""
    steady_pace: float = 1 / 2
    """Least pace of a lengthening tensor in each part. Higher: uneven growth is missed. Lower: varying sizes are reported."""
    settling_share: float = 1 / 3
    """Share of the iterations that shows whether growth has stopped. Higher: withdrawn later. Lower: withdrawn by chance."""
    settled_pace: float = 1 / 3
    """Largest pace in that share that counts as settled. Higher: slow leaks are withdrawn. Lower: full caches stay reported."""
    settling_scans: int = 3
    """Scans within that share. Higher: withdrawn later. Lower: withdrawn by chance."""
    remembered_scans: int = 24
    """Scans that are compared. Higher: more memory. Lower: growth seen at each of several optimizers spans too few iterations."""
    emptied_share: float = 1 / 2
    """Share of a holder's tensors that may remain when it was emptied. Higher: windows look emptied. Lower: emptying is missed."""
    emptied_at_once_share: float = 3 / 4
    """Share of tensors that must die within an iteration. Higher: emptying is missed. Lower: sliding windows look emptied."""
    emptied_tensors: int = 3
    """Least tensors that show it. Higher: small containers are never seen emptied. Lower: one rebound variable looks emptied."""
    refill_share: float = 1 / 4
    """Share of a cycle after which an emptied container counts as abandoned. Higher: withdrawn later. Lower: too early."""
    refill_iterations: int = 8
    """The same, at least in iterations."""
    full_scans: int = 2
    """Scans of a periodically emptied container when full. Higher: more time in scans. Lower: reported with too few bytes."""
    emptying_wait: int = 1_000
    """Iterations to wait for code that empties the container. Higher: reported late. Lower: reported before it is emptied."""
    iterations_after_epoch: int = 3
    """Iterations within which an epoch's container is emptied. Higher: reported late. Lower: reported too early."""
    restart_tolerance: int = 2
    """Iterations by which two scans may differ on a chain's start. Higher: restarts are missed. Lower: noise is a restart."""
    missed_cycle: float = 3 / 2
    """Factor on a cycle from which an emptying was missed. Higher: wrong cycle length. Lower: changed cycles are ignored."""

    # -- evaluations without graphs --------------------------------------------------------------------------------------

    evaluation_scan_pairs: int = 2
    """Pairs of scans within an evaluation. Higher: more time in scans. Lower: accumulation is missed."""
    evaluation_scans: int = 8
    """Scans of evaluations in all. Higher: more time in scans. Lower: uneven evaluations get no second scan."""
    evaluation_growth_share: float = 3 / 4
    """Least growth in proportion to the batches. Higher: missed. Lower: what was there before the evaluation is reported."""
    evaluation_live_share: float = 1 / 2
    """Share of live tensors that must be accumulated where peaks are unknown. Higher: missed on the CPU. Lower: false alarms."""

    # -- holders and words -----------------------------------------------------------------------------------------------

    call_argument_share: float = 0.5
    """Share of a holder's bytes that may be call arguments. Higher: key-value caches are reported. Lower: lists of batches are
    missed, as they contain the current batch."""
    numbered_attributes: int = 4
    """Attributes that differ in a number, from which on they are one holder. Higher: reported one by one. Lower: a model's
    ``w1`` and ``w2`` are one holder."""
    elements_per_window: int = 3
    """Least elements of each bounded deque in a container that is thereby bounded. Higher: meters look unbounded. Lower: a
    growing list of deques looks bounded."""
    duplicate_share: float = 1 / 4
    """Share of material bytes that a second holder must add. Higher: second leaks are missed. Lower: one leak under two names."""
    large_scalar_bytes: int = 4096
    """Bytes per scalar from which its storage is larger than the number. Only the advice changes."""
    large_view: int = 4
    """Factor from which a tensor's storage is larger than its elements. Only the advice changes."""


POLICY: Final = LeakPolicy()
"""Policy of this process."""


def material_bytes(live_bytes: int) -> int:
    """Bytes below which a holder is not reported unless it grows."""
    return max(POLICY.material_bytes, int(POLICY.material_share * live_bytes))

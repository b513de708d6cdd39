"""Builder of an out-of-memory record: reads the state of the process in sections, each guarded by itself.

A section that fails leaves its fields at their defaults and a note. About 2 ms, and 0.3 s of processor time for 100,000
blocks; the run is about to end, or to try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from vramscope.guard import guarded
from vramscope.memory.allocator_counters import counters_of
from vramscope.memory.allocator_settings import settings_in_force, settings_text
from vramscope.memory.host import Host
from vramscope.memory.layout_columns import layout
from vramscope.memory.peak_counters import limit_bytes, share_peak_counters
from vramscope.memory.pools import Pools
from vramscope.memory.stack_table import Stacks
from vramscope.oom import other_models, owned_memory, requesting_call, weight_sized
from vramscope.oom.leaks_at_error import LeaksAtError
from vramscope.oom.recent_samples import RecentSamples
from vramscope.oom.record_sections import (
    ContextSection,
    DeviceSection,
    LayoutSection,
    LeakSection,
    OwnerSection,
    TimelineSection,
    WindowSection,
)
from vramscope.oom.timeline import Timeline, node
from vramscope.oom.trigger import OomTrigger
from vramscope.process import identity
from vramscope.process.gc_pause import collector_paused
from vramscope.protocol import messages, series
from vramscope.protocol.leak_notes import slows_down
from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.other_process import OtherProcess
from vramscope.steps.phase import DATA, EVAL, OTHER
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

    from vramscope.leaks.detector import LeakDetector
    from vramscope.oom.other_models import LiveObjects
    from vramscope.oom.owned_memory import OwnedMemory
    from vramscope.steps.clock import StepClock

MOST_BLOCKS: Final = 400_000
"""With more blocks the layout is left out, because reading it would take seconds."""
MOST_BLOCKS_OF_BYSTANDER: Final = 40_000
"""Limit for a bystander, whose training may go on: reading blocks it for about 40 ms."""
MOST_LEAKS: Final = 64
MOST_TECHNIQUES: Final = 64

_Section = TypeVar("_Section")
Processes = Callable[[int], tuple[int | None, list[OtherProcess]] | None]
"""Own bytes on a device, and the other processes with theirs; None: NVML does not report them."""


class HistoryRecorder(Protocol):
    """Recorder of allocator history."""

    def out_of_memory(self, notes: list[str]) -> dict[int, str] | None:
        """Close the open recording. Return the id of its artifact by device."""


class Owned(NamedTuple):
    """Results of the section about owners that other sections need."""

    memory: OwnedMemory | None
    live: LiveObjects | None


class RecordBuilder:
    """Builds the record of an out-of-memory error. One per session.

    processes           processes on a device
    leaks, techniques   findings of the session so far
    detector            the leak detector; None where there is none
    losses              columns of the loss since a time
    """

    def __init__(
        self,
        clock: StepClock,
        recent: RecentSamples,
        *,
        processes: Processes,
        optimizers: Iterable[Any],
        roots: Iterable[torch.nn.Module],
        windows: HistoryRecorder | None,
        leaks: Callable[[], Sequence[messages.Leak]],
        detector: Callable[[], LeakDetector | None],
        techniques: Callable[[], Sequence[messages.Technique]],
        losses: Callable[[int], dict[str, bytes]],
        place: identity.JobRank,
    ) -> None:
        self._clock, self._recent, self._processes = clock, recent, processes
        self._optimizers, self._roots = optimizers, roots
        self._windows = windows
        self._leaks, self._techniques = leaks, techniques
        self._leaks_at_error = LeaksAtError(clock, detector)
        self._timeline = Timeline(clock, recent, roots, losses)
        self._place = place
        self._host = Host()

    def roots(self) -> list[torch.nn.Module]:
        """Models that train, as far as known; where none are, all objects are searched (0.1 s a million)."""
        return list(self._roots) or outermost_modules()

    def known_roots(self) -> list[torch.nn.Module]:
        """The same without the search of all objects, during which no other thread runs."""
        return list(self._roots)

    def device(self) -> int | None:
        """Device of an error that does not name one: the current one, if it is watched."""
        counters = self._clock.counters
        if not counters:
            return None
        import torch

        current = torch.cuda.current_device()
        return next((c.device for c in counters if c.device == current), counters[0].device)

    def memory_of(self, device: int | None) -> tuple[int | None, int | None]:
        """Total and free bytes by cudaMemGetInfo."""
        import torch

        try:
            free, total = torch.cuda.mem_get_info(device)
        except RuntimeError:  # the device is lost
            return None, None
        return total, free

    def build(self, trigger: OomTrigger) -> OomRecord:
        """Build the record."""
        began = time.perf_counter()
        now_ns = time.time_ns()
        notes: list[str] = []
        device = self._guarded("device", notes, DeviceSection(), lambda: self._device_section(trigger))
        counters = device.get("counters", {})
        owned = Owned(None, None)
        with guarded("the owners of an out-of-memory record"):
            owned = self._owned(trigger)
        layout_section = self._guarded(
            "layout", notes, LayoutSection(), lambda: self._layout_section(trigger, counters, owned.memory, notes)
        )
        kept = self._leaks_at_error.retained_by_exceptions(trigger, () if owned.live is None else owned.live.exceptions)
        timeline = self._guarded(
            "timeline", notes, TimelineSection(), lambda: self._timeline.section(trigger, now_ns, kept)
        )
        context = self._guarded("context", notes, ContextSection(), lambda: self._context_section(trigger))
        window = self._guarded("window", notes, WindowSection(), lambda: self._window_section(trigger, notes))
        suspects = self._guarded(
            "suspects", notes, LeakSection(), lambda: self._leak_section(trigger, counters, owned, timeline, kept)
        )
        return OomRecord(
            record=identity.random_id(),
            seen_by=trigger.seen_by,
            time_ns=now_ns,
            rank=self._place.rank,
            world_size=self._place.world_size,
            error_type=trigger.error_type,
            error_text=trigger.error_text,
            device=trigger.device,
            asked_bytes=trigger.asked_bytes,
            step=self._clock.step,
            stack=list(trigger.stack),
            thread=trigger.thread,
            notes=notes,
            seconds=time.perf_counter() - began,
            **device,
            **_owner_section(owned.memory),
            **layout_section,
            **timeline,
            **context,
            **window,
            **suspects,
        )

    def _guarded(self, name: str, notes: list[str], empty: _Section, build: Callable[[], _Section]) -> _Section:
        with guarded(f"the {name} section of an out-of-memory record"):
            return build()
        notes.append(f"The section {name} could not be read.")
        return empty

    # -- sections ----------------------------------------------------------------------------------------------------

    def _device_section(self, trigger: OomTrigger) -> DeviceSection:
        """Numbers of the device and its processes."""
        device, total, free, limit = trigger.device, trigger.total_bytes, trigger.free_bytes, trigger.limit_bytes
        outside_before = None if device is None else self._recent.least_outside_bytes(device)
        if not _is_cuda(device):
            return {
                "total_bytes": total,
                "free_bytes": free,
                "limit_bytes": limit,
                "outside_before_bytes": outside_before,
            }
        if total is None:
            total, free = self.memory_of(device)
            if device is not None and total is not None:
                limit = limit or limit_bytes(device)
        counters = self._counters(device)
        reserved = counters.get("reserved_bytes.all.current")
        processes = None if device is None else self._processes(device)
        own_bytes, others = (None, None) if processes is None else processes
        return {
            "total_bytes": total,
            "free_bytes": free,
            "limit_bytes": limit,
            "counters": counters,
            "outside_before_bytes": outside_before,
            "outside_bytes": None if own_bytes is None or reserved is None else max(0, own_bytes - reserved),
            "neighbours": others,
        }

    def _owned(self, trigger: OomTrigger) -> Owned:
        """Owners of the device's memory, and the live objects that were searched for them."""
        device, clock = trigger.device, self._clock
        if device is None:
            return Owned(None, None)
        roots = self.roots() if trigger.roots is None else trigger.roots
        live = other_models.scan() if trigger.is_own else None
        optimizers = list(self._optimizers)
        if live is not None:
            weights = (one for root in roots for one in root.parameters())
            optimizers = optimizers or other_models.optimizers_of(weights, live.optimizers)
            optimizers += other_models.about_to_begin(live.optimizers, optimizers, device)
        memory = owned_memory.count(
            optimizers,
            roots,
            device,
            loading=clock.step == 0
            and clock.phase == OTHER
            and not self._timeline.cuts(device)
            and _is_loading(trigger, roots),
            training=bool(optimizers) or clock.step > 0 or self._will_train(trigger, roots),
            frames=trigger.frames,
            live=live,
            moving=trigger.moving,
            idle=frozenset(key for key, step in list(clock.optimizer_steps.items()) if step < clock.step - 1),
        )
        return Owned(memory, live)

    def _layout_section(
        self, trigger: OomTrigger, counters: dict[str, int], owned: OwnedMemory | None, notes: list[str]
    ) -> LayoutSection:
        """Segments and blocks of the allocator, and its settings."""
        settings = settings_text({})
        pools = Pools()
        section: LayoutSection = {
            "settings": settings[:4096],
            "settings_in_force": settings_in_force({}, settings),
            "pools": pools.ids,
        }
        if not counters:
            return section
        blocks = counters.get("active.all.current", 0) + counters.get("inactive_split.all.current", 0)
        if blocks > (MOST_BLOCKS if trigger.is_own else MOST_BLOCKS_OF_BYSTANDER):
            notes.append(f"The allocator has {blocks:,} blocks. Their layout was not read.")
            return section
        from vramscope.memory.unusable import layout as segments_now

        with collector_paused(), guarded("the layout of an out-of-memory record"):
            segments = [
                segment for segment in segments_now(marks_history=True) or [] if segment["device"] == trigger.device
            ]
            if owned is not None:
                section["weight_sized_bytes"] = weight_sized.bytes_of(segments, owned.weight_numbers, owned.addresses)
            pools.learn(segments)
            section["layout"] = layout(segments, pools, Stacks(), counters, lambda: None)
        return section

    def _context_section(self, trigger: OomTrigger) -> ContextSection:
        """Running code, host, techniques and versions."""
        import torch

        running, host = trigger.running, self._host.read()
        return {
            "module": None if running is None else running.name[:4096],
            "node": node(),
            "progress": None if running is None else running.progress,
            "to_come_bytes": None if running is None else running.to_come_bytes,
            "forward_bytes": None if running is None else running.own_bytes,
            "computes": requesting_call.computes(trigger.frames[0]) if trigger.is_at_request else None,
            "no_graph_yet": not getattr(torch._C._autograd, "_get_sequence_nr", lambda: 1)(),
            "process_rss_bytes": _known(host.process_rss_bytes),
            "host_used_bytes": _known(host.host_used_bytes),
            "host_total_bytes": self._host.total_bytes(),
            "host_kills": self._host.kills(),
            "techniques": list(self._techniques())[:MOST_TECHNIQUES],
            "torch": str(torch.__version__),
            "hip": torch.version.hip,
        }

    def _window_section(self, trigger: OomTrigger, notes: list[str]) -> WindowSection:
        """The recording of allocator history, which ends here."""
        if self._windows is None or trigger.device is None or not trigger.is_own or not _is_cuda(trigger.device):
            return {}
        return {"window": (self._windows.out_of_memory(notes) or {}).get(trigger.device)}

    def _leak_section(
        self,
        trigger: OomTrigger,
        counters: dict[str, int],
        owned: Owned,
        timeline: TimelineSection,
        kept: Sequence[messages.Leak],
    ) -> LeakSection:
        """Leaks that are known, late suspects, and data of the program."""
        suspects = self._leaks_at_error
        named = [leak for leak in self._leaks() if not slows_down(leak)]
        known = named[: MOST_LEAKS - 1] or suspects.retained_from_last_step(trigger)
        known = known or suspects.retained_by_skipped_forward(trigger)
        leaks = [*kept, *known]
        accumulated = suspects.accumulated_bytes(counters, owned.memory)
        growth = suspects.holders_of_growth(timeline.get("steps", {}), leaks, accumulated, trigger)
        data = None if leaks or growth else suspects.data(counters, owned.memory, timeline, trigger)
        unused = None if leaks else suspects.unused_graph(counters, owned.live, trigger)
        return {"leaks": leaks, "last_look": growth, "data": data, "unused_graph": unused}

    # -- readings ------------------------------------------------------------------------------------------------------

    def _will_train(self, trigger: OomTrigger, roots: Sequence[torch.nn.Module]) -> bool:
        """Whether a process without steps and optimizers will train."""
        import torch

        phase = self._timeline.phase(trigger)
        if phase in (None, series.PHASES[OTHER], series.PHASES[DATA]):
            # A server allocates its cache before the first forward.
            return torch.is_grad_enabled() or any(root.training for root in roots)
        return phase != series.PHASES[EVAL]

    def _counters(self, device: int | None) -> dict[str, int]:
        import torch

        if device is None or torch.cuda.get_allocator_backend() != "native":
            return {}
        return counters_of(share_peak_counters().read(device))


def _owner_section(memory: OwnedMemory | None) -> OwnerSection:
    if memory is None:
        return {}
    return {
        "owned_bytes": memory.owned_bytes,
        "trainable_bytes": memory.trainable_bytes,
        "waiting_bytes": memory.waiting_bytes,
        "copy_of": None if memory.copying is None else memory.copying.name[:200],
        "copy_bytes": None if memory.copying is None else memory.copying.whole_bytes,
        "copy_waiting_bytes": None if memory.copying is None else memory.copying.waiting_bytes,
        "largest_parameter_bytes": memory.largest_parameter_bytes,
        "gradients_at_once_bytes": memory.gradients_at_once_bytes,
        "bucket_bytes": memory.bucket_bytes,
        "narrow_bytes": memory.narrow_bytes,
        "kept_models": memory.kept_models,
        "holders": memory.holders,
        "optimizer_kind": memory.optimizer_kind,
        "superseded_state_bytes": memory.superseded_state_bytes,
        "surplus_state_bytes": memory.surplus_state_bytes,
        "frozen_gradients_bytes": memory.frozen_gradients_bytes,
        "state_bytes_per_parameter_byte": memory.state_per_byte,
        "update": memory.update,
        "copies": memory.copies,
    }


def _is_loading(trigger: OomTrigger, roots: Sequence[torch.nn.Module]) -> bool:
    """Whether more of the models is to follow.

    In a forward, or where a part of a model is moved by itself, layers may be moved to the device and back one by one.
    Then only the part that is being moved is certain.
    """
    moved = trigger.moving
    return trigger.running is None and (moved is None or any(moved is root for root in roots))


def _is_cuda(device: int | None) -> bool:
    import torch

    return device is not None and device != series.CPU and torch.cuda.is_initialized()


def _known(value: int) -> int | None:
    return None if value == series.UNKNOWN else value

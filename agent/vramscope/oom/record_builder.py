"""What is read of the process when memory has run out, and the record that is made of it.

Some 2 ms, and 0.3 s of processor time where there are 100,000 blocks; the run is about to end, or to try again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.memory.allocator_counters import counters_of
from vramscope.memory.allocator_settings import settings_in_force, settings_text
from vramscope.memory.host import Host
from vramscope.memory.peak_counters import limit_bytes, share_peak_counters
from vramscope.memory.step_splits import allocated_before_forward
from vramscope.oom import other_models, owners
from vramscope.oom.recent_samples import KEPT_NS
from vramscope.oom.stack import wants_gradients
from vramscope.oom.suspects import Suspects
from vramscope.oom.trigger import Error
from vramscope.process import identity
from vramscope.process.gc_pause import collector_paused
from vramscope.protocol import messages, series
from vramscope.protocol.oom_record import BlackBox, Neighbour
from vramscope.protocol.window import Layout
from vramscope.recording.convert.layouts import layout
from vramscope.recording.convert.pools import Pools
from vramscope.recording.convert.stacks import Stacks
from vramscope.sampling.step_blocks import step_row
from vramscope.steps.phase import BACKWARD, DATA, EVAL, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

    from vramscope.leaks.detector import LeakDetector
    from vramscope.recording.recorder import WindowRecorder
    from vramscope.sampling.sampler import Sampler
    from vramscope.steps.clock import StepClock

MOST_BLOCKS: Final = 400_000
"""with more the layout is left out: reading it would take seconds"""
MOST_BLOCKS_OF_BYSTANDER: Final = 40_000
"""whose training may go on meanwhile: some 40 ms for which the interpreter is held"""


class Scene:
    """One a session.

    leaks, techniques   what the session has found so far
    graphs              who watches over graphs; None where nobody does
    losses              the loss since a moment, as columns
    """

    def __init__(
        self,
        clock: StepClock,
        sampler: Sampler,
        *,
        optimizers: Iterable[Any],
        roots: Iterable[torch.nn.Module],
        windows: WindowRecorder | None,
        leaks: Callable[[], Sequence[messages.Leak]],
        graphs: Callable[[], LeakDetector | None],
        techniques: Callable[[], Sequence[messages.Technique]],
        losses: Callable[[int], dict[str, bytes]],
        place: identity.JobRank,
    ) -> None:
        self._clock, self._sampler = clock, sampler
        self._optimizers, self._roots = optimizers, roots
        self._windows = windows
        self._leaks, self._techniques = leaks, techniques
        self._suspects = Suspects(clock, graphs)
        self._losses = losses
        self._place = place
        self._host = Host()

    def roots(self) -> list[torch.nn.Module]:
        """The models that train, as far as they are known; where none are, all objects are looked through (0.1 s a million)."""
        return list(self._roots) or outermost_modules()

    def known_roots(self) -> list[torch.nn.Module]:
        """The same without the look through all objects, during which no other thread runs."""
        return list(self._roots)

    def box(self, error: Error) -> BlackBox:
        """The record."""
        import torch

        began = time.perf_counter()
        clock, recent = self._clock, self._sampler.recent
        now_ns = time.time_ns()
        notes: list[str] = []
        device, total, free, limit = error.device, error.total_bytes, error.free_bytes, error.limit_bytes
        is_cuda = device is not None and device != series.CPU and torch.cuda.is_initialized()
        if is_cuda and total is None:
            total, free = self.memory_of(device)
            if device is not None and total is not None:
                limit = limit or limit_bytes(device)
        counters = self._counters(device) if is_cuda else {}
        cuts = clock.cuts()
        position = next((n for n, c in enumerate(clock.counters) if c.device == device), None)
        known = [s.cuts[position] for s in cuts if position is not None and position < len(s.cuts)]
        held = seen = None
        if device is not None:
            with guarded("the count of who owns what"):
                roots = self.roots() if error.roots is None else error.roots
                seen = other_models.scan() if error.here else None
                optimizers = list(self._optimizers)
                if not optimizers and seen is not None:
                    optimizers = other_models.optimizers_of(
                        (one for root in roots for one in root.parameters()), seen.optimizers
                    )
                held = owners.count(
                    optimizers,
                    roots,
                    device,
                    loading=clock.step == 0 and clock.phase == OTHER and not known and _is_loading(error, roots),
                    training=bool(optimizers) or clock.step > 0 or self._will_train(error, roots),
                    frames=error.frames,
                    beside=seen,
                    moving=error.moving,
                )
        most_blocks = MOST_BLOCKS if error.here else MOST_BLOCKS_OF_BYSTANDER
        made, pools = self._layout(device, counters, most_blocks, notes) if is_cuda else (None, Pools())
        before = recent.newest(device if device is not None else series.CPU)
        steps = {} if device is None else recent.course.columns(device, clock.untaken())
        kept = self._suspects.kept_by_errors(error, () if seen is None else seen.faults)
        shape, shape_before = self._shapes()
        leaks = [*kept, *(list(self._leaks())[:63] or self._suspects.held_over(error))]
        host = self._host.read()
        neighbours, own_bytes = self._on_card(device if is_cuda else None)
        reserved = counters.get("reserved_bytes.all.current")
        settings = settings_text({})
        windows = self._close_window(notes) if is_cuda and error.here else {}
        return BlackBox(
            record=identity.random_id(),
            seen_by=error.seen_by,
            time_ns=now_ns,
            rank=self._place.rank,
            world_size=self._place.world_size,
            error_type=error.error_type,
            error_text=error.error_text,
            device=device,
            asked_bytes=error.asked_bytes,
            total_bytes=total,
            free_bytes=free,
            limit_bytes=limit,
            step=clock.step,
            phase=self._phase(error),
            thread=error.thread,
            forwards=clock.batch.forwards if clock.phase == FORWARD else 0,
            evaluates=clock.batch.evaluates and clock.phase == FORWARD,
            module=None if error.running is None else error.running.name[:4096],
            node=_node(),
            progress=None if error.running is None else error.running.progress,
            to_come_bytes=None if error.running is None else error.running.to_come_bytes,
            forward_bytes=None if error.running is None else error.running.own_bytes,
            stack=list(error.stack),
            counters=counters,
            counters_before={name: value for name, value in before.items() if name in series.SAMPLES},
            peak_allocated_bytes=max([cut.peak_allocated_bytes for cut in known], default=None),
            owned_bytes={} if held is None else held.owned_bytes,
            trainable_bytes=None if held is None else held.trainable_bytes,
            gradients_at_once_bytes=None if held is None else held.gradients_at_once_bytes,
            bucket_bytes=None if held is None else held.bucket_bytes,
            waiting_bytes=None if held is None else held.waiting_bytes,
            narrow_bytes=None if held is None else held.narrow_bytes,
            update=None if held is None else held.update,
            largest_parameter_bytes=None if held is None else held.largest_parameter_bytes,
            optimizer_kind=None if held is None else held.optimizer_kind,
            state_bytes_per_parameter_byte=None if held is None else held.state_per_byte,
            allocated_before_forward_bytes=self._before_forward(position, kept),
            holders=[] if held is None else held.holders,
            layout=made,
            pools=pools.ids,
            samples=recent.columns(device if device is not None else series.CPU, now_ns),
            losses=self._losses(now_ns - KEPT_NS),
            last_step=self._last_step(device),
            steps=steps,
            batch_size=error.batch_size or (clock.batch.rows if clock.phase in (BACKWARD, OPTIMIZER) else None),
            input_shape=shape,
            input_shape_before=shape_before,
            input_sizes=self._sizes(device) if shape else [],
            outside_before_bytes=None if device is None else recent.least_outside_bytes(device),
            outside_bytes=None if own_bytes is None or reserved is None else max(0, own_bytes - reserved),
            neighbours=neighbours,
            process_rss_bytes=_known(host.process_rss_bytes),
            host_used_bytes=_known(host.host_used_bytes),
            host_total_bytes=self._host.total_bytes(),
            host_kills=self._host.kills(),
            settings=settings[:4096],
            settings_in_force=settings_in_force({}, settings),
            torch=str(torch.__version__),
            leaks=leaks,
            last_look=self._suspects.last_look(steps, leaks, self._suspects.gathered_bytes(counters, held), error),
            techniques=list(self._techniques())[:64],
            window=windows.get(device) if device is not None else None,
            seconds=time.perf_counter() - began,
            notes=notes,
        )

    # -- what is read --------------------------------------------------------------------------------------------------

    def device(self) -> int | None:
        """The one that is most likely meant where an error does not say."""
        counters = self._clock.counters
        if not counters:
            return None
        import torch

        current = torch.cuda.current_device()
        return next((c.device for c in counters if c.device == current), counters[0].device)

    def memory_of(self, device: int | None) -> tuple[int | None, int | None]:
        """(total, free) as cudaMemGetInfo tells it."""
        import torch

        try:
            free, total = torch.cuda.mem_get_info(device)
        except RuntimeError:  # (a device that is lost)
            return None, None
        return total, free

    def _phase(self, error: Error) -> str | None:
        """As the clock says; the forward of a model that nobody has seen yet, as the stack does. None: another thread's."""
        clock = self._clock
        if not clock.watched or error.thread is not None:
            return None
        if clock.phase in (OTHER, DATA) and error.running is not None and _node() is None:
            return "forward" if wants_gradients(error.frames) else "eval"
        if clock.phase == EVAL and not clock.step and wants_gradients(error.frames) and self._trains_unheard():
            return "forward"
        return series.PHASES[clock.phase]

    def _trains_unheard(self) -> bool:
        """In the first step a reference that was shown by its ``eval()`` is heard before the model that trains."""
        known = {id(root) for root in self._roots}
        return any(
            root.training and id(root) not in known and any(one.requires_grad for one in root.parameters())
            for root in outermost_modules()
        )

    def _will_train(self, error: Error, roots: Sequence[torch.nn.Module]) -> bool:
        """Of a process that has made no step and has no optimizer."""
        import torch

        phase = self._phase(error)
        if phase in (None, series.PHASES[OTHER], series.PHASES[DATA]):
            # (A server makes room for its cache before the first forward.)
            return torch.is_grad_enabled() or any(root.training for root in roots)
        return phase != series.PHASES[EVAL]

    def _counters(self, device: int | None) -> dict[str, int]:
        import torch

        if device is None or torch.cuda.get_allocator_backend() != "native":
            return {}
        return counters_of(share_peak_counters().read(device))

    def _layout(
        self, device: int | None, counters: dict[str, int], most_blocks: int, notes: list[str]
    ) -> tuple[Layout | None, Pools]:
        from vramscope.memory.unusable import layout as segments_now

        pools = Pools()
        if not counters:
            return None, pools
        blocks = counters.get("active.all.current", 0) + counters.get("inactive_split.all.current", 0)
        if blocks > most_blocks:
            notes.append(f"the allocator held {blocks:,} blocks: their layout was not read")
            return None, pools
        with collector_paused(), guarded("the layout at the error"):
            segments = [segment for segment in segments_now() or [] if segment["device"] == device]
            pools.learn(segments)
            return layout(segments, pools, Stacks(), counters, lambda: None), pools
        return None, pools

    def _last_step(self, device: int | None) -> dict[str, int]:
        newest = self._clock.newest
        return {} if newest is None or device is None else step_row(newest, series.UNKNOWN, device)

    def _before_forward(self, position: int | None, kept: Sequence[messages.Leak]) -> int | None:
        stretches = [s for s in self._clock.cuts() if position is not None and position < len(s.cuts)]
        if position is None or not stretches:
            return None
        if self._clock.phase == FORWARD:
            # (A failed attempt was of the same phase: what is kept of it was there before the one that runs.)
            return stretches[-1].cuts[position].allocated_bytes + sum(leak.held_bytes for leak in kept)
        return allocated_before_forward(stretches, position)

    def _shapes(self) -> tuple[list[int], list[int]]:
        """What the model that trains was given now, and at most in the last step; empty where that is not known of both. Between
        two steps the last one's alone."""
        clock = self._clock
        if clock.batch.latest is None or clock.phase not in (DATA, FORWARD, BACKWARD):
            return [], []
        root, shape = clock.batch.latest
        before = clock.batch.largest_before.get(root, ())
        if clock.phase == DATA:
            return [], list(before)
        return (list(shape), list(before)) if len(shape) == len(before) else ([], [])

    def _sizes(self, device: int | None) -> list[tuple[list[int], int]]:
        """What earlier steps took whose inputs had other sizes."""
        clock = self._clock
        if clock.batch.latest is None or device is None:
            return []
        return self._sampler.recent.course.sizes(device, clock.batch.latest[0], clock.untaken())

    def _on_card(self, device: int | None) -> tuple[list[Neighbour] | None, int | None]:
        """Other processes, and what this one has."""
        told = None if device is None else self._sampler.processes(device)
        if told is None:
            return None, None
        own, others = told
        return [Neighbour(pid=pid, used_bytes=used) for pid, used in others], own

    def _close_window(self, notes: list[str]) -> dict[int, str]:
        return {} if self._windows is None else self._windows.out_of_memory(notes) or {}


def _is_loading(error: Error, roots: Sequence[torch.nn.Module]) -> bool:
    """Whether more of the models is to follow. Where a forward runs, or a part is moved by itself, layers may be taken to the card
    and back one by one: only what is being moved is certain then."""
    moved = error.moving
    return error.running is None and (moved is None or any(moved is root for root in roots))


def _node() -> str | None:
    """The autograd node that runs on this thread."""
    torch = sys.modules.get("torch")
    current = getattr(getattr(torch, "_C", None), "_current_autograd_node", None)
    node = None if current is None else current()
    return None if node is None else str(node.name())[:4096]


def _known(value: int) -> int | None:
    return None if value == series.UNKNOWN else value

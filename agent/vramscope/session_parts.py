"""Builds and connects all parts of a session, and starts and stops them in order."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from typing import Any

from vramscope.dry_run.current import current_part
from vramscope.guard import guarded
from vramscope.integrations.extensions import extend
from vramscope.integrations.target import Target
from vramscope.leaks.detector import LeakDetector
from vramscope.leaks.source_text import with_source
from vramscope.leaks.terminal_lines import LeakLines
from vramscope.memory.allocator_settings import allocator_settings
from vramscope.memory.category_split import Categories
from vramscope.memory.host import Host
from vramscope.metrics.loss import LossWatch
from vramscope.metrics.reported import ReportedNumbers
from vramscope.oom.peer_signal import PeerSignal
from vramscope.oom.recent_samples import RecentSamples
from vramscope.oom.record_builder import RecordBuilder
from vramscope.oom.recorder import OomRecorder
from vramscope.oom.weight_copies import in_variables, optimizer_in_variables
from vramscope.process import identity, terminal
from vramscope.process.exception_place import note_exception
from vramscope.process.forks import unwatch_forks, watch_forks
from vramscope.process.lifecycle import Lifecycle
from vramscope.process.notices import Notice
from vramscope.process.redaction import Secrets
from vramscope.profiler.plan import ProfilePlan
from vramscope.profiler.recorder import ProfileRecorder
from vramscope.protocol import messages, series
from vramscope.recording.recorder import WindowRecorder
from vramscope.sampling.end_summary import EndState, print_summary
from vramscope.sampling.highest_step import HighestSteps
from vramscope.sampling.sampler import Sampler
from vramscope.settings import Settings
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.patches.cuda_graphs import UNSEEN, ReplayPatch
from vramscope.steps.peaks_after_last_step import tails_of
from vramscope.steps.records import StepRecord
from vramscope.techniques.detector import TechniqueDetector
from vramscope.trackers.mirror import TrackerMirror
from vramscope.transport.ring import Ring
from vramscope.transport.sender import Sender
from vramscope.transport.spool import Spool

LAST_LOSS_S = 0.3
"""Maximum time that the end of a session waits for losses that are still on their way from the GPU."""


class SessionParts:
    """All parts of one session. :class:`vramscope.session.Session` adds what the user calls."""

    def __init__(self) -> None:
        self.live = False
        self.run_id = ""
        self.url = ""
        self._devices: tuple[int, ...] = ()
        self._commit = identity.Commit()
        self._failed: tuple[str, str] | None = None
        self._recorder: WindowRecorder | None = None
        self._profiler: ProfileRecorder | None = None
        self._techniques: TechniqueDetector | None = None
        self._oom: OomRecorder | None = None
        self._leaks: list[messages.Leak] = []
        self._newest_scan: messages.Scan | None = None
        self._highest = HighestSteps()
        self._detector: LeakDetector | None = None
        self._loss: LossWatch | None = None

    def open(
        self,
        target: object,
        settings: Settings,
        config: Mapping[str, Any] | None,
        before: SessionParts | None = None,
        *,
        sends: bool = True,
    ) -> None:
        """Start watching. ``before`` is the session that ended for this one. ``sends`` False: all data stay in the spool folder."""
        self._settings, self._sends = settings, sends
        self._secrets = Secrets(known=[settings.token])
        self._secrets.command_line(sys.argv)  # what is a secret there is one in an error's words, too
        self._job = identity.job_rank()
        self.run_id = identity.run_id(settings.run_id, self._job)
        self.url = f"{settings.server}/runs/{self.run_id}"
        self._leak_lines = LeakLines(self.url, self._run_peak_bytes)
        self.name = identity.run_name(settings.run_name)
        self._start_ns = time.time_ns()

        self._clock = StepClock(
            phases=bool(settings.phases), in_every_step=settings.phases == "every", budget=settings.budget
        )
        self._hooks = LoopHooks(self._clock, functools.partial(in_variables, {}))
        self._ring = Ring()
        self._sender = Sender(
            settings,
            session=identity.random_id(),
            run=self.run_id,
            rank=self._job.rank,
            first_message=self._hello,
            look_up_slow_facts=self._commit.look_up,
            complete=functools.partial(with_source, hide=self._secrets.hide),
            ring=self._ring,
            spool=Spool(settings.spool_dir, settings.spool_bytes),
            on_request=self._on_request,
            sends=sends,
        )
        self._recent = RecentSamples(settings.interval_ms)
        self._sampler = Sampler(
            interval_ms=settings.interval_ms,
            clock=self._clock,
            ring=self._ring,
            on_devices=self._on_devices,
            others_cpu_seconds=lambda: self._sender.cpu_seconds,
            dropped_samples=lambda: self.dropped_samples,
            on_sample=self._recent.put,
            on_steps=self._on_steps,
            secrets=Secrets(known=[settings.token]),
        )
        self._mirror = TrackerMirror(settings.mirror, self.url, self._ring.put, lambda: self._leaks, self._secrets.hide)
        self._lifecycle = Lifecycle(self)
        loss: LossWatch | None = None
        if settings.loss:
            loss = LossWatch(lambda: self._hooks.leader, lambda: list(self._hooks.roots), reads=self._clock.reads)
            self._loss = self._hooks.loss = loss
            self._clock.subscribe(loss)
        if (part := current_part()) is not None:
            self._clock.subscribe(part)
        self._reported = ReportedNumbers(loss, self._ring.put, self._sampler.wall_ns)
        self._hooks.checkpoint = self._reported.checkpoint
        self._hooks.loaded_checkpoint = self._reported.loaded_checkpoint
        if settings.loss:
            self._hooks.tell = functools.partial(self._reported.add, asked=False)

        if settings.leaks:
            exists = optimizer_in_variables
            self._detector = LeakDetector(self._clock, self._looked, tell=self._leak_found, optimizer_exists=exists)
            self._hooks.graphs = self._detector
        if settings.windows:
            self._recorder = WindowRecorder(
                self._clock,
                self._ring,
                roots=self._hooks.roots,
                optimizers=self._hooks.optimizers,
                pace_s=settings.flush_ms / 1000,
                on_window=self._sampler.fragments.learn,
                other_is_open=lambda: self._profiler is not None and self._profiler.is_open,
                in_variables=in_variables,
            )
        self._profiler = ProfileRecorder(
            self._clock,
            self._ring,
            roots=self._hooks.roots,
            pace_s=settings.flush_ms / 1000,
            plan=ProfilePlan(by_itself=settings.profile),
            other_is_open=lambda: self._recorder is not None and self._recorder.is_open,
        )
        builder = RecordBuilder(
            self._clock,
            self._recent,
            processes=self._sampler.processes,
            optimizers=self._hooks.optimizers,
            roots=self._hooks.roots,
            windows=self._recorder,
            leaks=lambda: [*self._leaks, *(self._newest_scan.filling if self._newest_scan else ())],
            detector=lambda: self._detector,
            techniques=lambda: () if self._techniques is None else self._techniques.known,
            losses=self._reported.losses,
            place=self._job,
        )
        self._oom = OomRecorder(
            self._clock,
            builder,
            keep=self._sender.keep_now,
            put=self._ring.put,
            hide=self._secrets.hide,
            url=self.url,
            peer_signal=PeerSignal(settings.spool_dir, self.run_id) if self._job.world_size > 1 else None,
        )
        self._hooks.on_error = self._oom.passes
        self._sampler.at_ticks = self._at_tick
        if settings.techniques:
            self._techniques = TechniqueDetector(self._clock, self._hooks, report=self._ring.put)
        extend(self._hooks)
        self._hooks.install()
        ReplayPatch(self._hooks, Notice(self._ring.put, lambda: self._clock.step, UNSEEN)).install()
        self._target = Target(
            self._hooks,
            self._techniques,
            self._secrets,
            on_failure=self._note_failure,
            learned=self._sender.attach_again,
            named=self._take_name,
        )
        self._target.begin(target, config)
        if settings.phases:
            self._clock.breakdown = Categories(self._hooks.optimizers, self._hooks.roots, self._peak_of)
        self._sampler.start()
        if self._recorder is not None:
            self._recorder.begin()
            if self._detector is not None:
                self._detector.questions.recording = self._recorder
        self._profiler.begin()
        self._sender.start()
        self._mirror.start()
        self._oom.begin()
        self._lifecycle.begin()
        watch_forks(self)
        self.live = True
        if sends:
            watching = f"watching run '{self.name}'" + ("" if before is None else f" (run '{before.name}' has ended)")
            terminal.say_once(f"attached {self.run_id}", watching + terminal.address(self.run_id, self.url))

    @guarded("attach")
    def adopt(self, target: object, config: Mapping[str, Any] | None) -> None:
        """Take over a target, or more of the user's configuration, in a running session."""
        self._target.adopt(target, config)

    @property
    def waits_for_target(self) -> bool:
        """True if the session began without a target: the first target belongs to it."""
        return self._target.waits

    @guarded("the end of the session")
    def end(self, error_type: str | None = None, error_line: str | None = None) -> None:
        """End as finished, or as failed with an error's type and first line. A second call does nothing."""
        if not self.live:
            return
        self.live = False
        if error_type in (None, "SystemExit") and self._failed is not None:  # a framework may say why it left
            error_type, error_line = self._failed
        tails: list[messages.Tail] = []
        with guarded("the last step"):
            self._hooks.end_last_step_by_hand()
        with guarded("the peak behind the last step"):
            self._clock.end_plain_steps()
            tails = tails_of(self._clock)
        if self._detector is not None:
            with guarded("the leaks at the end"):
                self._detector.end()
        self._hooks.remove()
        self._leak_lines.ended(self._leaks)
        for part in (self._recorder, self._profiler):
            if part is not None:
                part.close()
        self._lifecycle.release()
        unwatch_forks(self)
        if self._loss is not None:
            self._loss.finish(LAST_LOSS_S)
            self._hooks.loss = self._loss = None
        self._sampler.stop()
        if self._oom is not None:
            self._oom.end()
        self._mirror.stop("" if self._oom is None else self._oom.verdict)
        self._ring.put(
            messages.Ended(
                time_ns=time.time_ns(),
                state="finished" if error_type is None else "failed",
                error_type=error_type,
                error_line=None if error_line is None else self._secrets.hide(error_line),
                dropped_samples=self.dropped_samples,
                tails=tails,
            )
        )
        with guarded("the summary"):
            if self._sends and "OutOfMemory" not in (error_type or ""):  # its own lines follow
                rises = self._detector is not None and self._detector.after_step.rises
                self._highest.put_tails(tails)
                findings = None if self._techniques is None else self._techniques.findings
                survived, failed = 0 if self._oom is None else self._oom.survived, error_type is not None
                steps = self._clock.steps_here if self._devices == (series.CPU,) else 0
                state = EndState(self._highest.highest(), self._newest_scan, findings, rises, survived, failed, steps)
                print_summary(state, self.url, self._job.rank if self._job.world_size > 1 else None)
        if self._sender.close(self._settings.close_timeout_s):
            self._mirror.add_post_mortem(self._settings, self.run_id)

    @property
    def dropped_samples(self) -> int:
        """Rows that were dropped: in the ring, in the spool, or between the training and the sampler."""
        return self._sender.dropped_rows + self._clock.finished.lost

    def before_fork(self) -> None:
        """End what a forked child must not continue."""
        if self.live and self._profiler is not None:
            self._profiler.before_fork()

    def forget_in_child(self) -> None:
        """Silence the copy in a forked child: the parent continues the session, and CUDA does not survive a fork."""
        self.live = False
        self._ring.after_fork_in_child()
        self._sender.after_fork_in_child()
        for part in (self._recorder, self._profiler):
            if part is not None:
                part.after_fork_in_child()
        self._hooks.remove()

    def failing(self, fault: BaseException) -> None:
        """Handle an uncaught exception that is about to end the process; its frames still exist."""
        if self.live and self._oom is not None:
            self._oom.raised(fault)
        if self.live:
            note_exception(fault, self._clock.step, self._ring.put)

    def cell_failed(self, error_type: str, error_line: str, cell: int | None) -> None:
        """Handle an error that ended a notebook cell, not the training."""
        if self._oom is not None:
            self._oom.ended_with(error_type, error_line)
        line = self._secrets.hide(error_line)
        fields: dict[str, messages.Scalar] = {"error_type": error_type, "error_line": line, "cell": cell}
        self._ring.put(messages.Event(time_ns=time.time_ns(), kind="cell_error", step=self._clock.step, data=fields))

    def _looked(self, scan: messages.Scan) -> None:
        self._leaks, self._newest_scan = scan.leaks, scan
        self._ring.put(scan)
        self._leak_lines.looked(scan.leaks)

    def _leak_found(self, leak: messages.Leak) -> None:
        if self._techniques is not None:
            self._techniques.leak(leak)
        if self._recorder is not None:
            self._recorder.leak_found()

    def _note_failure(self, error_type: str, error_line: str) -> None:
        self._failed = (error_type, error_line)
        if self._oom is not None:
            self._oom.ended_with(error_type, error_line)

    # -- for its parts -------------------------------------------------------------------------------------------------

    def _at_tick(self) -> None:
        """On the sampler's thread, ten times a second."""
        self._reported.flush()
        if self._oom is not None:
            self._oom.check()

    def _on_devices(self, devices: tuple[int, ...]) -> None:
        self._devices = devices
        self._sender.attach_again()

    def _on_request(self, requests: list[str]) -> None:
        """Handle requests of the server. On the sender's thread."""
        if messages.RECORD_WINDOW in requests and self._recorder is not None:
            self._recorder.ask()
        if messages.RECORD_BYSTANDER in requests and self._oom is not None and self._oom.bystander is not None:
            self._oom.bystander.ask()
        if self._profiler is not None:
            if messages.RECORD_TRACE in requests:
                self._profiler.ask(trace=True)
            elif messages.RECORD_PROFILE in requests:
                self._profiler.ask()

    def _take_name(self, name: str) -> None:
        """A name that the user gave vramscope itself stays."""
        if not self._settings.run_name:
            self.name = name[: messages.MAX_NAME]

    def _hello(self) -> messages.Attached:
        """Build the first message, from what is known by now. On the sender's thread, or where memory ran out before."""
        nvml = self._sampler.nvml
        return identity.attached(
            project=self._settings.project,
            name=self.name,
            tags=self._settings.tags,
            config=self._target.config,
            resumes=self._settings.resume,
            job=self._job,
            framework=self._target.framework,
            device_indices=self._devices,
            start_ns=self._start_ns,
            driver=None if nvml is None else nvml.driver,
            commit=self._commit.text,
            allocator_settings=allocator_settings(),
            host_total_bytes=Host().total_bytes(),
            secrets=self._secrets,
        )

    def _on_steps(self, steps: list[StepRecord]) -> None:
        self._recent.steps.put(steps)
        self._highest.put(steps)
        self._mirror.put(steps)

    def _run_peak_bytes(self) -> int | None:
        return self._highest.peak_bytes(self._clock.counters)

    def _peak_of(self, device: int) -> int:
        return next((one.peak_now() for one in self._clock.counters if one.device == device), 0)

"""Plain steps: the hooks are absent, one record covers a group, and whatever is no step brings the hooks back."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.integrations.extensions import extend
from vramscope.process.live_objects import living
from vramscope.process.watched_calls import is_watched
from vramscope.steps import detail_plan
from vramscope.steps.clock import StepClock
from vramscope.steps.detail_plan import MOST_IN_GROUP, STEPS_AFTER_RISE, EndedStep, StepPlan
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.phase import DATA, EVAL, OTHER
from vramscope.steps.records import UNKNOWN_AFTER_STEP, AfterStep


class Training:
    """A small model whose steps are plain as soon as they may be: the budget is next to nothing."""

    def __init__(self, *, phases: bool = True) -> None:
        if living(torch.optim.Optimizer):
            gc.collect()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.clock = StepClock(phases=phases, budget=1e-9)
        self.hooks = LoopHooks(self.clock)
        extend(self.hooks)
        self.hooks.install([self.model])

    def step(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def until_plain(self) -> None:
        for _ in range(400):
            self.step()
            if self.hooks.plain.are_running:
                return
        raise AssertionError("no step was plain")


@pytest.fixture
def training(monkeypatch):
    monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
    training = Training()
    yield training
    training.hooks.remove()


def test_a_record_covers_each_group_and_no_step_is_missing(training) -> None:
    for _ in range(2000):
        training.step()
    training.clock.end_plain_steps()
    records = training.clock.finished.take()
    assert training.clock.step == 2000 == records[-1].number == sum(record.steps for record in records)
    assert all(later.number - later.steps == earlier.number for earlier, later in itertools.pairwise(records))
    assert {record.steps for record in records if not record.watched} >= {MOST_IN_GROUP}
    assert all(record.micro_steps == 1 for record in records if record.watched), "a detailed step is whole"
    assert sum(record.watched for record in records) < 300


def test_without_phases_there_are_groups_too(monkeypatch) -> None:
    monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
    training = Training(phases=False)
    try:
        for _ in range(2000):
            training.step()
        training.clock.end_plain_steps()
        records = training.clock.finished.take()
    finally:
        training.hooks.remove()
    assert training.clock.step == 2000 == records[-1].number == sum(record.steps for record in records)
    assert {record.steps for record in records} >= {1, MOST_IN_GROUP}
    assert not any(record.watched for record in records)
    assert {interval.phase for record in records for interval in record.intervals} <= {OTHER, DATA}


def test_in_plain_steps_nothing_is_called_but_at_their_ends(training, monkeypatch) -> None:
    training.until_plain()
    entered: list[int] = []
    monkeypatch.setattr(training.clock, "enter", entered.append)
    monkeypatch.setattr(training.clock, "inputs", lambda *_: entered.append(-1))
    for _ in range(MOST_IN_GROUP - 1):
        training.step()
    assert not entered
    assert training.hooks.plain.are_running


def test_a_plain_step_calls_few_python_functions(training) -> None:
    """One hook before the optimizer's step, one after it, its guard and what counts the step. Each costs up to 1 µs."""
    training.until_plain()
    called: list[str] = []

    def note(frame, event, argument) -> None:
        # Watched functions of PyTorch call two empty ones.
        if event == "call" and "vramscope" in frame.f_code.co_filename and frame.f_code.co_name != "_nothing":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        training.step()
    finally:
        sys.setprofile(None)
    assert called == ["begins", "ends", "safe", "_after_optimizer"]


def test_the_leak_detector_learns_of_each_plain_step(training) -> None:
    class Retention:
        numbers: list[int] = []  # noqa: RUF012 - one instance

        def plain_steps_ended(self, numbers: list[int]) -> None:
            self.numbers.extend(numbers)

        def end_step(self, intervals: object) -> AfterStep:
            return UNKNOWN_AFTER_STEP

    training.until_plain()
    training.clock.retention = retention = Retention()
    for _ in range(MOST_IN_GROUP):
        training.step()
    training.step()
    training.model.train()  # ends the plain steps
    plain = sum(record.steps - 1 for record in training.clock.finished.take() if not record.watched)
    assert len(retention.numbers) >= plain > 0
    assert retention.numbers == sorted(set(retention.numbers)), "autograd's numbers rise from step to step"


def test_an_evaluation_is_seen(training) -> None:
    training.until_plain()
    for _ in range(5):
        training.step()
    training.model.eval()
    with torch.no_grad():
        training.model(torch.ones(2, 4))
    assert training.clock.phase == EVAL
    training.model.train()
    (group,) = training.clock.finished.take()[-1:]
    assert group.steps == 5 and not group.watched, "the group ends where the evaluation begins"
    training.step()
    (detailed,) = training.clock.finished.take()
    assert detailed.steps == 1 and detailed.watched and detailed.micro_steps == 1
    assert EVAL in [interval.phase for interval in detailed.intervals]


def test_an_interruption_within_a_step_leaves_the_step_to_its_group(training) -> None:
    """As where a teacher is switched to eval() after the forward pass: which peak was before it is not known."""
    training.until_plain()
    training.step()
    training.clock.finished.take()
    loss = training.model(torch.ones(2, 4)).sum()
    training.model.train()
    assert not training.hooks.plain.are_running and not training.clock.finished.take()
    loss.backward()
    training.optimizer.step()
    (group,) = training.clock.finished.take()
    assert group.steps == 2 and len(group.intervals) == 1 and not group.watched
    training.step()
    assert training.clock.finished.take()[0].watched


def test_a_new_pass_over_a_loader_brings_the_hooks_back(training) -> None:
    loader = DataLoader(torch.ones(6, 4), batch_size=2)
    training.until_plain()
    training.step()
    batches = iter(loader)
    assert not training.hooks.plain.are_running
    next(batches)
    assert training.hooks.loader.batches == 1


def test_the_step_of_another_optimizer_brings_the_hooks_back(training) -> None:
    training.until_plain()
    steps = training.clock.step
    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    other.step()
    assert not training.hooks.plain.are_running
    assert other in training.hooks.optimizers
    assert training.clock.step == steps, "the leader's steps are the training's"
    training.step()
    assert training.clock.finished.take()[-1].number == steps + 1


@pytest.mark.parametrize("critic_steps", [1, 5], ids=["each step", "every fifth"])
def test_steps_of_two_optimizers_in_turn_are_plain(training, critic_steps: int) -> None:
    """A GAN: both optimizers step in each of its steps, or the second one in every fifth."""
    other = torch.optim.SGD([weight := nn.Parameter(torch.ones(2))], lr=0.1)

    def one_step(number: int) -> None:
        training.step()
        if number % critic_steps == 0:
            weight.square().sum().backward()
            other.step()

    for number in range(2000):
        one_step(number)
    training.clock.end_plain_steps()
    records = training.clock.finished.take()
    assert training.clock.step == 2000 == records[-1].number == sum(record.steps for record in records)
    assert {record.steps for record in records if not record.watched} >= {MOST_IN_GROUP}
    assert sum(record.watched for record in records) < 400


def test_hooks_come_back_where_the_other_optimizer_goes_on_alone(training) -> None:
    other = torch.optim.SGD([weight := nn.Parameter(torch.ones(2))], lr=0.1)

    def other_step() -> None:
        weight.square().sum().backward()
        other.step()

    for _ in range(400):
        training.step()
        other_step()
        if training.hooks.plain.are_running:
            break
    assert training.hooks.plain.are_running
    steps = training.clock.step
    for _ in range(20):
        other_step()
    assert training.hooks.leader is other
    assert training.clock.step > steps + 10, "the steps of the new leader count"


def test_the_last_group_is_recorded_without_what_came_after_it(training) -> None:
    training.until_plain()
    for _ in range(7):
        training.step()
    training.model.eval()
    with torch.no_grad():
        training.model(torch.ones(2, 4))
    training.clock.end_plain_steps()
    group = training.clock.finished.take()[-1]
    assert (group.number, group.steps) == (training.clock.step, 7)
    assert training.clock.phase == EVAL
    training.clock.end_plain_steps()
    assert not training.clock.finished.take()


def test_a_group_without_an_interruption_is_recorded_at_the_end(training) -> None:
    training.until_plain()
    training.step()
    training.clock.finished.take()
    training.clock.end_plain_steps()
    (group,) = training.clock.finished.take()
    assert (group.number, group.steps) == (training.clock.step, 1)


def test_a_step_that_the_user_ends_closes_the_group(training) -> None:
    training.until_plain()
    training.step()
    training.clock.finished.take()
    training.clock.end_step()
    (group,) = training.clock.finished.take()
    assert group.steps == 2
    training.step()
    assert training.clock.finished.take() or training.hooks.plain.are_running


def test_functions_are_restored_when_the_session_ends_in_plain_steps(training) -> None:
    training.until_plain()
    training.hooks.remove()
    assert not is_watched(torch.autograd.backward)
    assert not is_watched(nn.Module._call_impl)
    assert not is_watched(DataLoader.__iter__)
    another = Training()
    another.step()
    assert another.clock.finished.take()[0].micro_steps == 1, "the next session's hooks are not paused"
    another.hooks.remove()


def test_without_budget_for_it_every_step_is_detailed(monkeypatch) -> None:
    monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 10**12)
    training = Training()
    for _ in range(600):
        training.step()
    training.hooks.remove()
    assert all(record.steps == 1 and record.micro_steps == 1 for record in training.clock.finished.take())


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Python's cycle collector stands still: callbacks of other libraries at a collection are counted by Dynamo as well."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_compiled_model_is_not_compiled_again(training, no_collections) -> None:
    compiled = torch.compile(training.model, backend="eager")

    def step() -> None:
        compiled(torch.ones(2, 4)).sum().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    for _ in range(20):
        step()
    before = dict(torch._dynamo.utils.counters["frames"]), dict(torch._dynamo.utils.counters["stats"])
    for _ in range(500):
        step()
    assert any(record.steps > 1 for record in training.clock.finished.take())
    assert (dict(torch._dynamo.utils.counters["frames"]), dict(torch._dynamo.utils.counters["stats"])) == before


LEAK = textwrap.dedent(
    """
    import json, torch
    from torch import nn
    from vramscope.leaks.detector import LeakDetector
    from vramscope.steps import detail_plan
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks
    detail_plan.ALLOWANCE_NS = 0
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = StepClock(budget=1e-9)
    hooks = LoopHooks(clock)
    scans = []
    hooks.graphs = LeakDetector(clock, scans.append)
    hooks.install([model])
    kept, growing = [], []
    for number in range(LEAK_FROM + 3 * detail_plan.MOST_PLAIN_STEPS):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= LEAK_FROM:
            kept.append(loss)
        growing = [leak for leak in scans[-1].leaks if leak.kind == "growing"] if scans else []
        if growing:
            break
    groups = sum(record.steps > 1 for record in clock.finished.take())
    print(json.dumps([groups, [[leak.holder, leak.count] for leak in growing], len(kept)]))
    """
)


def test_a_leak_that_begins_in_plain_steps_is_found() -> None:
    """Two detailed steps show that graphs are kept, and from then on no step is plain: three stretches are enough.

    In a process of its own: among the objects of all other tests a scan may not come to its end.
    """
    done = warm.run(LEAK.replace("LEAK_FROM", "700"))
    assert done.returncode == 0, done.stderr[-3000:]
    groups, growing, kept = json.loads(done.stdout)
    ((holder, count),) = growing
    assert groups > 0 and "kept" in holder and count <= kept


class TestPlan:
    """The plan alone, on steps of a chosen length and cost."""

    @staticmethod
    def run(
        cost_ns: int,
        reading_ns: int,
        bare_ns: int,
        steps: int,
        *,
        rise_at: int = 0,
        scans_ns: int = 0,
        threads: float = 0,
        start_ns: int = 0,
    ) -> list[tuple[str, int]]:
        plan = StepPlan()
        plan.threads_take(threads)
        plan.count_start(start_ns)
        planned, number, kind, count = [], 0, "detailed", 1
        while number < steps:
            number += count
            spent = {"detailed": cost_ns, "control": reading_ns, "plain": reading_ns}[kind]
            spent += scans_ns if number == 3 else 0
            peak = 2 if rise_at and number >= rise_at else 1
            seen = EndedStep(number, count, kind == "detailed", kind == "plain", [peak], spent, bare_ns * count + spent)
            planned.append((kind, count))
            following = plan.next_steps(seen)
            kind = "control" if following.is_control else "plain" if following.plain_steps else "detailed"
            count = max(1, following.plain_steps)
        return planned

    @pytest.mark.parametrize(
        ("cost_us", "reading_us", "bare_us"), [(120, 35, 300), (200, 80, 2000), (400, 250, 700), (100, 30, 50)]
    )
    def test_watching_takes_its_share_and_no_more(self, monkeypatch, cost_us, reading_us, bare_us) -> None:
        monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
        planned = self.run(cost_us * 1000, reading_us * 1000, bare_us * 1000, 100_000)
        spent = sum(cost_us if kind == "detailed" else reading_us for kind, _ in planned[100:])
        share = spent / (bare_us * sum(count for _, count in planned[100:]))
        assert 0.005 < share < 0.03

    def test_the_agents_threads_take_their_part_of_the_budget(self, monkeypatch) -> None:
        """Steps get at least a quarter of it. The budget is 2 %."""
        monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
        shares = []
        for threads in (0.0, 0.01, 0.5):
            planned = self.run(200_000, 80_000, 2_000_000, 100_000, threads=threads)[100:]
            detailed = sum(kind == "detailed" for kind, _ in planned)
            shares.append(detailed / sum(count for _, count in planned))
        assert shares[0] > 1.5 * shares[1] > 2 * shares[2] > 0

    def test_long_steps_stay_detailed(self) -> None:
        planned = self.run(120_000, 35_000, 30_000_000, 20_000)
        assert all(kind != "plain" for kind, _ in planned)
        assert 0 < sum(kind == "control" for kind, _ in planned) < 0.1 * len(planned)

    def test_the_first_steps_are_detailed_until_the_allowance_is_spent(self) -> None:
        planned = self.run(100_000, 30_000, 200_000, 10_000)
        first = next(place for place, (kind, _) in enumerate(planned) if kind == "plain")
        assert first == pytest.approx(detail_plan.ALLOWANCE_NS / 100_000, rel=0.1)

    def test_import_and_attach_count_to_the_allowance(self) -> None:
        planned = self.run(100_000, 30_000, 200_000, 10_000, start_ns=100_000_000)
        first = next(place for place, (kind, _) in enumerate(planned) if kind == "plain")
        assert first == pytest.approx((detail_plan.ALLOWANCE_NS - 100_000_000) / 100_000, rel=0.1)

    def test_after_a_slow_import_the_first_steps_are_detailed_all_the_same(self) -> None:
        planned = self.run(100_000, 30_000, 200_000, 10_000, start_ns=2_000_000_000)
        first = next(place for place, (kind, _) in enumerate(planned) if kind == "plain")
        assert detail_plan.WARM_UP_STEPS <= first <= detail_plan.WARM_UP_STEPS + 2 * detail_plan.BLOCK_STEPS

    def test_scans_count_to_the_allowance(self) -> None:
        planned = self.run(100_000, 30_000, 200_000, 10_000, scans_ns=250_000_000)
        first = next(place for place, (kind, _) in enumerate(planned) if kind == "plain")
        spent_at = (detail_plan.ALLOWANCE_NS - 250_000_000) // 100_000
        assert spent_at - 10 <= first <= spent_at + 2 * detail_plan.BLOCK_STEPS

    def test_after_a_higher_peak_steps_are_detailed(self, monkeypatch) -> None:
        monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
        planned = self.run(120_000, 35_000, 300_000, 6_000, rise_at=3_000)
        numbers = list(itertools.accumulate(count for _, count in planned))
        risen = next(place for place, number in enumerate(numbers) if number >= 3_000)
        if planned[risen][0] == "plain":
            assert [kind for kind, _ in planned[risen + 1 :][:STEPS_AFTER_RISE]] == ["detailed"] * STEPS_AFTER_RISE

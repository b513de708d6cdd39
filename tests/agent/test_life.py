"""How a training lives and dies with the agent in it: forks, signals, errors, no server, several ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from collector import Collector
from training import Arrived, environment, run, start
from waiting import eventually

from vramscope.protocol import messages, series

pytestmark = pytest.mark.timeout(150)


def test_an_uncaught_exception_is_sent_by_type_and_first_line(collector, spool) -> None:
    output = run("agent.attach(model)\ntrain(3)\nraise RuntimeError('boom\\nsecond line')", collector, spool, expect=1)
    ended = Arrived(collector).ended
    assert (ended.state, ended.error_type, ended.error_line) == ("failed", "RuntimeError", "boom")
    assert "RuntimeError: boom" in output, "the user's traceback is as it was"


def test_an_uncaught_exception_is_sent_with_the_users_line(collector, spool, tmp_path) -> None:
    """Of the frames the innermost that is the user's: not the library that raised it."""
    helper = tmp_path / "augment.py"
    helper.write_text("import torch\n\ndef flip(x):\n    return x.view(7, -1)\n")
    path = f"sys.path.insert(0, {str(tmp_path)!r})\n"
    program = f"{path}import augment\nagent.attach(model)\ntrain(3)\naugment.flip(torch.zeros(5))"
    run(program, collector, spool, expect=1)
    (event,) = [one for one in Arrived(collector).of(messages.Event) if one.kind == "exception"]
    assert event.data == {"error_type": "RuntimeError", "file": str(helper), "line": 4, "function": "flip"}
    assert event.step == 3


def test_an_exit_code_is_a_failure_and_one_that_is_caught_is_not(collector, spool) -> None:
    caught = "try: sys.exit(3)\nexcept SystemExit: pass\n"
    run(f"agent.attach(model)\ntrain(3)\n{caught}train(2)\nsys.exit(7)", collector, spool, expect=7)
    arrived = Arrived(collector)
    assert (arrived.ended.state, arrived.ended.error_type, arrived.ended.error_line) == (
        "failed",
        "SystemExit",
        "exit code 7",
    )
    assert len(arrived.rows("steps")) == 5


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("pass", ("finished", None, None)),
        ("sys.exit(0)", ("finished", None, None)),
        ("sys.exit(7)", ("failed", "SystemExit", "exit code 7")),
        ("raise RuntimeError('boom')", ("failed", "RuntimeError", "boom")),
    ],
)
def test_a_with_block_ends_the_run_and_passes_the_exception_on(collector, spool, last, state) -> None:
    run(
        f"""
        try:
            with agent.attach(model) as session:
                train(3)
                {last}
        except BaseException as error:
            assert repr(error) in ("SystemExit(0)", "SystemExit(7)", "RuntimeError('boom')")
        else:
            assert {last!r} == "pass"
        assert not session.live
        train(2)
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    assert (arrived.ended.state, arrived.ended.error_type, arrived.ended.error_line) == state
    assert len(arrived.rows("steps")) == 3


def test_a_generator_that_is_closed_within_its_block_is_no_failure(collector, spool) -> None:
    run(
        """
        def steps():
            with agent.attach(model):
                while True:
                    yield train(1)
        running = steps()
        next(running)
        running.close()
        """,
        collector,
        spool,
    )
    assert Arrived(collector).ended.state == "finished"


def test_a_failed_cell_is_an_event_and_the_run_continues(collector, spool) -> None:
    pytest.importorskip("IPython")
    run(
        """
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance(user_ns=globals())
        for cell in ("session = agent.attach(model); train(3)", "train(1); 1 / 0", "train(1) +", "import sys; sys.exit(7)"):
            shell.run_cell(cell, store_history=True)
        assert session.live
        shell.run_cell("train(2); agent.detach()")
        assert not session.live
        shell.run_cell("1 / 0")
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    seen = [
        (event.data["error_type"], event.data["cell"])
        for event in arrived.of(messages.Event)
        if event.kind == "cell_error"
    ]
    assert seen == [("ZeroDivisionError", 2), ("SyntaxError", 3), ("SystemExit", 4)]
    assert [event.step for event in arrived.of(messages.Event) if event.kind == "cell_error"] == [4, 4, 4]
    assert arrived.ended.state == "finished"
    assert len(arrived.rows("steps")) == 6


def test_a_secret_in_an_error_the_environment_or_on_the_command_line_is_not_sent(collector, spool, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, torch\nfrom vramscope import agent\n"
        "agent.attach(tags=[os.environ['MY_TOKEN']], config={'cb': [{'api_key': 'hunter2'}], 'lr': os.environ['MY_TOKEN']})\n"
        "raise ValueError('https://me:hunter2@example.org refused hf_abcdefghijklmnopqrst, correct-horse and ' + sys.argv[3])\n"
    )
    options = ["--hf-token", "hunter2", "--api_key=hunter2", "--pw", "battery-staple", "--config", '{"key": "hunter2"}']
    command = [sys.executable, str(script), "a", "b", "battery-staple", *options, "--max-tokens", "512"]
    telling = environment(collector, spool, MY_TOKEN="correct-horse")
    subprocess.run(command, env=telling, capture_output=True, timeout=100, check=False)
    arrived = Arrived(collector)
    everything = repr(arrived.messages)
    for secret in ("hunter2", "hf_abcdef", "correct-horse", "battery-staple"):
        assert secret not in everything
    shown = ["--hf-token", "***", "--api_key=***", "--pw", "***", "--config", '{"key": "***"}', "--max-tokens", "512"]
    assert arrived.attached.command[1:] == ["a", "b", "***", *shown]
    assert arrived.attached.tags == ["***"]
    assert arrived.ended.error_line == "https://***@example.org refused ***, *** and ***"


def test_an_unreadable_configuration_does_not_stop_the_agent(collector, spool) -> None:
    output = run(
        """
        from collections import UserDict
        class Missing(UserDict):
            def __getitem__(self, name): raise KeyError("missing mandatory value: " + name)
        guard.raise_faults = False
        agent.attach(model, config=Missing(lr=0.1))
        train(3)
        """,
        collector,
        spool,
    )
    assert "the reading of the configuration failed inside" in output
    assert len(Arrived(collector).rows("steps")) == 3


def test_argparse_and_dataclass_configurations_are_accepted(collector, spool) -> None:
    output = run(
        """
        from argparse import Namespace
        from dataclasses import dataclass
        @dataclass
        class Options:
            depth: int = 3
        agent.attach(model, config=Namespace(lr=0.1, api_key="something secret"))
        agent.attach(model, config=Options())
        agent.attach(model, config=[1, 2])
        train(3)
        """,
        collector,
        spool,
    )
    assert "attach was given list as config; it knows a mapping of names to values" in output
    assert "failed inside" not in output
    fields: dict[str, object] = {}
    for attached in Arrived(collector).of(messages.Attached):
        fields |= attached.config
    assert fields == {"lr": 0.1, "api_key": "***", "depth": 3}


def test_ctrl_c_ends_the_training_as_it_would_and_the_run_as_interrupted(collector, spool) -> None:
    process = start("agent.attach(model)\nprint('go', flush=True)\nfor _ in range(30000): train(1)", collector, spool)
    assert process.stdout.readline() == "go\n"
    eventually(lambda: collector.stored)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert Arrived(collector).ended.error_type == "KeyboardInterrupt"


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_training_lacks_only_the_last_flush(collector, spool, kill) -> None:
    process = start(
        "agent.attach(model)\nprint('go', flush=True)\nfor _ in range(3000): train(1); time.sleep(0.01)",
        collector,
        spool,
    )
    assert process.stdout.readline() == "go\n"
    eventually(lambda: len(Arrived(collector).rows("steps")) > 50)
    killed_ns = time.time_ns()
    process.send_signal(kill)
    process.communicate(timeout=30)
    assert process.returncode == -kill, "no handler of ours changes how the training dies"
    arrived = Arrived(collector)
    assert arrived.ended is None
    assert killed_ns - arrived.rows("steps")[-1]["time_ns"] < 2_000_000_000


def test_data_loader_workers_are_silent_and_unharmed(collector, spool) -> None:
    run(
        """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 32
            def __getitem__(self, i): return torch.zeros(64)
        agent.attach(model)
        for epoch in range(2):
            for batch in torch.utils.data.DataLoader(
                Data(), batch_size=4, num_workers=2, multiprocessing_context="fork"
            ):
                model(batch.to(device)).sum().backward(); optimizer.step()
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    assert len(arrived.sessions) == 1
    assert [row["step"] for row in arrived.rows("steps")] == list(range(1, 17))


def test_a_fork_while_every_thread_is_busy_does_not_hang_the_child(collector, spool) -> None:
    output = run(
        """
        import os
        agent.attach(model, interval_ms=10)
        train(5)
        for _ in range(20):
            child = os.fork()
            if child == 0:
                session = agent.attach()
                os._exit(0)
            os.waitpid(child, 0)
            train(1)
        print("alive")
        """,
        collector,
        spool,
    )
    assert "alive" in output
    assert len(Arrived(collector).rows("steps")) == 25


def test_spawned_workers_do_not_become_runs(collector, spool, tmp_path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\nfrom vramscope import agent\n"
        "def work(rank): torch.ones(3).sum()\n"
        "if __name__ == '__main__':\n    agent.attach()\n    mp.spawn(work, nprocs=1)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(collector, spool), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(Arrived(collector).sessions) == 1


def test_the_ranks_of_a_torchrun_job_are_one_run(collector, spool, tmp_path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\nfrom torch import nn\nfrom vramscope import agent\n"
        "dist.init_process_group('gloo')\n"
        "model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "session = agent.attach(model, name='job')\n"
        "for _ in range(5):\n    model(torch.ones(4, 8)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "dist.destroy_process_group()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    done = subprocess.run(torchrun, env=environment(collector, spool), capture_output=True, text=True, timeout=140)
    assert done.returncode == 0, done.stderr[-3000:]
    arrived = Arrived(collector)
    assert len(arrived.runs) == 1 and arrived.ranks == {0, 1} and len(arrived.sessions) == 2
    assert {m.rank: m.world_size for m in arrived.of(messages.Attached)} == {0: 2, 1: 2}
    for rank in (0, 1):
        assert [row["step"] for row in arrived.rows("steps", rank)] == [1, 2, 3, 4, 5]
    assert done.stderr.count("vramscope: watching run") == 1, "one rank of a host speaks"


def test_without_a_server_one_line_and_nothing_is_lost(collector, spool) -> None:
    """The samples wait on disk; a later process sends them with vramscope sync."""
    collector.stop()
    output = run("session = agent.attach(model)\ntrain(30)\nassert session._sender.flush(30)", collector, spool)
    assert output.count("no server at") == 1
    with Collector(port=collector.port) as later:
        done = subprocess.run(
            [sys.executable, "-c", "from vramscope.transport.sync import main; raise SystemExit(main([]))"],
            env=environment(later, spool),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        arrived = Arrived(later)
        assert [row["step"] for row in arrived.rows("steps")] == list(range(1, 31))
        assert arrived.ended.state == "finished"


def test_a_server_that_hangs_delays_neither_the_steps_nor_the_end(collector, spool) -> None:
    collector.mode = "hang"
    output = run(
        """
        agent.attach(model)
        train(5)
        began = time.monotonic(); train(50); print("steps", time.monotonic() - began)
        began = time.monotonic(); agent.detach(); print("end", time.monotonic() - began)
        """,
        collector,
        spool,
        VRAMSCOPE_READ_TIMEOUT_S="90",
    )
    took = {line.split()[0]: float(line.split()[1]) for line in output.splitlines() if line[:3] in ("ste", "end")}
    assert took["steps"] < 45, "one request that was waited for would have taken 90"
    assert took["end"] < 45


def test_disabled_does_nothing_at_all(collector, spool) -> None:
    output = run(
        """
        before = torch.autograd.backward
        session = agent.attach(model)
        train(3)
        assert torch.autograd.backward is before and not session.live
        """,
        collector,
        spool,
        VRAMSCOPE_DISABLED="1",
    )
    assert not collector.stored and "vramscope" not in output


def test_a_wrong_setting_is_one_line_and_the_training_runs(collector, spool) -> None:
    output = run("agent.attach(model)\ntrain(3)\nprint('trained')", collector, spool, VRAMSCOPE_INTERVAL_MS="soon")
    assert "VRAMSCOPE_INTERVAL_MS: saw 'soon'" in output and "trained" in output
    assert not collector.stored


def test_attached_twice_it_is_one_session_and_a_new_name_is_a_new_run(collector, spool) -> None:
    output = run(
        """
        first = agent.attach(model, name="one")
        assert agent.attach() is first
        train(3)
        second = agent.attach(model, name="other")
        assert second is not first and not first.live
        train(2)
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    assert len(arrived.runs) == 2
    assert len(arrived.rows("steps")) == 5
    assert [ended.state for ended in arrived.of(messages.Ended)] == ["finished", "finished"]
    assert "watching run 'one': " in output and "watching run 'other' (run 'one' has ended): " in output


def test_a_session_without_a_target_adopts_the_first(collector, spool) -> None:
    """``vramscope run`` attaches by itself; a script that then attaches its model continues the same run."""
    run(
        """
        first = agent.attach()
        train(3)
        assert agent.attach(model, config={"depth": 2}) is first
        train(2)
        """,
        collector,
        spool,
    )
    arrived = Arrived(collector)
    assert len(arrived.sessions) == 1
    assert arrived.attached.config == {"depth": 2}
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4, 5]


def test_a_session_changes_no_numbers_and_retains_nothing(collector, spool) -> None:
    """Fifty steps with dropout, to the bit; and what the user deletes is gone."""
    output = run(
        """
        import gc, weakref
        def weights(watched):
            torch.manual_seed(3)
            net = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.Linear(64, 2))
            opt = torch.optim.AdamW(net.parameters())
            if watched: agent.attach(net, interval_ms=10)
            for _ in range(50):
                net(torch.randn(8, 16)).square().mean().backward(); opt.step(); opt.zero_grad()
            return [p.detach().clone() for p in net.parameters()], [weakref.ref(net), weakref.ref(opt)]
        alone, _ = weights(False)
        watched, references = weights(True)
        assert all(torch.equal(a, b) for a, b in zip(alone, watched))
        gc.collect()
        assert [r() for r in references] == [None, None]
        print("the same")
        """,
        collector,
        spool,
        CUDA_VISIBLE_DEVICES="",
    )
    assert "the same" in output


def test_the_users_random_numbers_are_those_without_us(collector, spool) -> None:
    """Runs in a process without the agent's imports, while the server does not answer."""
    script = """
        import random, sys
        import numpy as np, torch
        from vramscope import agent
        assert not {"httpx", "rich"} & sys.modules.keys(), "what is imported with us may draw, too"
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        state = lambda: (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2:],
            torch.get_rng_state().tolist())
        before = state()
        model = torch.nn.utils.skip_init(torch.nn.Linear, 64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        session = agent.attach(model, interval_ms=10)
        import time
        for _ in range(60):
            model(torch.ones(8, 64)).sum().backward(); optimizer.step(); optimizer.zero_grad(); time.sleep(0.02)
        agent.detach()
        assert state() == before
        print("the same", session is not None)
        """
    env = environment(collector, spool, CUDA_VISIBLE_DEVICES="", VRAMSCOPE_SERVER="http://127.0.0.1:9")
    code = textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=spool.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "the same True" in done.stdout


@pytest.mark.parametrize("server", ["http://127.0.0.1:9", "https://127.0.0.1:9"])
def test_preparing_a_connection_draws_and_writes_no_random_state(server: str) -> None:
    """A state that is read and put back would repeat what another thread draws in between."""
    script = """
        import random, sys
        from vramscope.transport.http import ServerConnection
        assert not {"httpx", "rich"} & sys.modules.keys(), "what is imported already draws nothing now"
        written = []
        random.setstate = random.seed = lambda *given: written.append(given)
        before = random.getstate()
        connection = ServerConnection(sys.argv[1], None, connect_timeout_s=1, read_timeout_s=1)
        connection.prepare()
        assert connection.post(b"").outcome == "away"
        connection.close()
        assert "httpx" in sys.modules and "rich" not in sys.modules
        assert random.getstate() == before and not written
        """
    code = textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code, server], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_fault_of_the_agent_reaches_only_the_log(collector, spool) -> None:
    output = run(
        """
        guard.raise_faults = False
        from vramscope.steps.clock import StepClock
        def broken(self, phase): raise ZeroDivisionError("ours")
        StepClock.enter = broken
        agent.attach(model)
        train(30)
        print("trained")
        """,
        collector,
        spool,
    )
    assert "trained" in output
    assert output.count("ZeroDivisionError: ours") <= 4, "each kind is reported once"


def test_a_machine_without_cuda_sends_what_it_has(collector, spool) -> None:
    run("agent.attach(model)\ntrain(20)\ntime.sleep(0.4)", collector, spool, CUDA_VISIBLE_DEVICES="")
    arrived = Arrived(collector)
    steps, samples = arrived.rows("steps"), arrived.rows("samples")
    assert {row["device"] for row in steps + samples} == {series.CPU}
    assert all("peak_allocated_bytes" not in row for row in steps), "not known, and so not sent; never 0"
    assert all(row["process_rss_bytes"] > 0 for row in samples)
    weights = 4 * (64 * 256 + 256 + 256 * 4 + 4)
    counted = [row for row in steps if "end_parameters_bytes" in row]
    assert counted and all(row["end_parameters_bytes"] == weights for row in counted)
    assert arrived.attached.devices[0].index == series.CPU


def test_cuda_is_never_started_by_the_agent(collector, spool) -> None:
    run(
        """
        agent.attach()
        time.sleep(0.5)
        assert not torch.cuda.is_initialized()
        if hasattr(torch.cuda, "_is_in_bad_fork"):
            assert not torch.cuda._is_in_bad_fork()
        """.replace("\n        ", "\n"),
        collector,
        spool,
        loop=False,
    )


def test_the_overhead_is_measured_in_the_run(collector, spool) -> None:
    run("agent.attach(model)\nwhile agent._live._clock.step < 1500: train(1); time.sleep(0.002)", collector, spool)
    arrived = Arrived(collector)
    overhead = arrived.of(messages.Overhead)[-1]
    assert overhead.watched_steps + overhead.unwatched_steps == 1500
    assert overhead.unwatched_steps >= 16
    assert overhead.seconds_per_step is not None and overhead.noise_fraction > 0
    assert 0 < overhead.hook_seconds < sum(row["duration_ns"] for row in arrived.rows("steps")) / 1e9
    assert overhead.sampler_cpu_seconds > 0


def test_dropped_rows_are_reported_during_the_run(collector, spool) -> None:
    run(
        """
        from vramscope.sampling import sampler
        sampler.OVERHEAD_EVERY_S = 0.2
        agent.attach(model)
        train(3)
        time.sleep(0.5)
        ring = agent._live._sender.ring
        ring.max_bytes, room = 1, ring.max_bytes
        train(5)
        time.sleep(0.5)
        ring.max_bytes = room
        time.sleep(0.8)
        """.replace("\n        ", "\n"),
        collector,
        spool,
    )
    arrived = Arrived(collector)
    seen = [overhead.dropped_samples for overhead in arrived.of(messages.Overhead)]
    assert seen[0] == 0 and seen == sorted(seen)
    assert len({*seen}) >= 2 and seen[-2] > 0, "not in the last message alone"
    assert arrived.of(messages.Ended)[-1].dropped_samples == seen[-1]


def test_importing_the_agent_imports_neither_torch_nor_the_server() -> None:
    heavy = ("torch", "fastapi", "vramscope_server", "numpy")
    script = f"import sys, vramscope.agent; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr

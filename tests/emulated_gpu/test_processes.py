"""Several processes on one emulated GPU: capacity is shared, the dead give back, a forked child starts empty."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

HOLD = "import torch; x = torch.empty({gib} << 30, dtype=torch.uint8, device='cuda'); print('up', flush=True); input()"


def test_processes_share_the_capacity_and_the_killed_give_back(run_python, shared_ledger):
    """Two hold 3 and 5 GiB of 12; a third sees what is left and, told who has the rest, fails; one dies by SIGKILL."""
    environment = {"EMULATED_GPU_LEDGER": shared_ledger, "EMULATED_GPU_TOTAL_MEM": "12G"}
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD.format(gib=gib)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for gib in (3, 5)
    ]
    try:
        for holder in holders:
            assert holder.stdout.readline() == "up\n"
        seen = run_python(
            """
            import os, signal, torch
            print(torch.cuda.mem_get_info()[0] >> 20)
            try: torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error: print(error)
            """,
            **environment,
        )
        free_mib, message = seen.split("\n", 1)
        assert int(free_mib) == 12 * 1024 - 8 * 1024 - 3 * 520  # three contexts
        assert f"Process {holders[0].pid} has 3.51 GiB memory in use" in message
        assert f"Process {holders[1].pid} has 5.51 GiB memory in use" in message

        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        code = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        code += "print([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)])"
        assert run_python(code, **environment) == f"[{holders[1].pid}]\n"
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def test_a_fork_leaves_the_parents_books_alone(run_python, shared_ledger):
    """DataLoader workers fork: NVML works in the child, which holds nothing, and its end takes nothing from us."""
    shown = run_python(
        """
        import os, torch, pynvml
        def used():
            pynvml.nvmlInit()
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
            return {p.pid: p.usedGpuMemory >> 20 for p in processes}
        x = torch.empty(1 << 28, device="cuda")
        own = used()
        child = os.fork()
        if not child:
            os._exit(0 if used() == own else 1)
        print(os.waitpid(child, 0)[1], used() == own, own[os.getpid()])
        """,
        EMULATED_GPU_LEDGER=shared_ledger,
    )
    assert shown.split() == ["0", "True", str(1024 + 520)]


def test_a_data_loader_with_workers_feeds_the_device(run_python):
    """Forked workers, pinned memory, an asynchronous copy."""
    shown = run_python(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        torch.empty(1, device="cuda")
        loader = DataLoader(TensorDataset(torch.randn(32, 3)), batch_size=8, num_workers=2, pin_memory=True)
        print(sum(batch.to("cuda", non_blocking=True).numel() for batch, in loader))
        """
    )
    assert shown == "96\n"

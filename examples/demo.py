"""What ``make demo`` runs: a server on this machine, and a training that it watches.

    python examples/demo.py                 until Ctrl-C
    python examples/demo.py --steps 200     ends by itself, with a summary of the run

A vramscope server that already answers at 127.0.0.1:8265 is used as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / ".cache" / "demo"
NAME = "gpt2-small"
CPU_NAME, CPU_STEPS = "gpt2-tiny-on-cpu", 200
VRAMSCOPE = Path(sys.executable).parent / "vramscope"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--port", type=int, default=8265, help="of the server")
    words = parser.parse_args()
    steps = words.steps
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as tidily as Ctrl-C

    address, server = f"http://127.0.0.1:{words.port}", None
    if not is_vramscope(address):
        address = f"http://127.0.0.1:{free_port(words.port)}"
        server = start_server(address)
    try:
        print(f"vramscope: open {address} to watch the training" + ("" if steps else "; Ctrl-C stops it"), flush=True)
        if train(address, steps) and steps:
            subprocess.run([VRAMSCOPE, "show", NAME], env={**os.environ, "VRAMSCOPE_SERVER": address}, check=True)
    finally:
        if server:
            stop(server)
            print(
                f"vramscope: the server has stopped. To see the runs again: VRAMSCOPE_DATA_DIR={DATA} {VRAMSCOPE} server"
            )


def is_vramscope(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/api/v1/server", timeout=5) as answer:
            return "wire" in json.load(answer)
    except (OSError, ValueError):
        return False


def free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left is free for a server
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            print(f"vramscope: port {wanted} is taken by something else, so the demo takes another")
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(address: str) -> subprocess.Popen[bytes]:
    DATA.mkdir(parents=True, exist_ok=True)
    log = DATA / "server.log"
    port = address.rpartition(":")[2]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [VRAMSCOPE, "server", "--host", "127.0.0.1", "--port", port],
            env={**os.environ, "VRAMSCOPE_DATA_DIR": str(DATA)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the training first; the server then takes the last of it
        )
    deadline = time.monotonic() + 30
    while not is_vramscope(address):
        if server.poll() is not None or time.monotonic() > deadline:
            stop(server)
            raise SystemExit(f"vramscope: the server did not start. It said:\n{log.read_text()}")
        time.sleep(0.1)
    return server


def train(address: str, steps: int | None) -> bool:
    """Train to the end. False if Ctrl-C ended it before."""
    if is_emulated() and not train_on_cpu(address):
        return False
    # On an emulated GPU the page must not claim a card that is not there.
    environment = {"EMULATED_GPU_NAME": "emulated H100 80GB", **os.environ}
    return run_training(address, NAME, ["--steps", str(steps)] if steps else [], environment)


def run_training(address: str, name: str, options: list[str], environment: dict[str, str] | None = None) -> bool:
    """Run a training to its end. False if Ctrl-C ended it before."""
    command = [sys.executable, ROOT / "examples" / "gpt2.py", "--server", address, "--name", name, *options]
    training = subprocess.Popen(command, env=environment)
    interrupted = False
    try:
        status = training.wait()
    except KeyboardInterrupt:
        interrupted = True
        try:  # the terminal has told the training, too
            status = training.wait(timeout=5)
        except subprocess.TimeoutExpired:
            training.send_signal(signal.SIGINT)
            status = training.wait(timeout=30)
    if status:
        raise SystemExit(f"vramscope: the training ended with status {status}")
    return not interrupted


def is_emulated() -> bool:
    """Whether PyTorch sees the emulated GPU, which computes no loss."""
    name = "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_properties(0).uuid)"
    found = subprocess.run([sys.executable, "-c", name], capture_output=True, text=True, check=False)
    return bytes.fromhex(found.stdout.strip().replace("-", "")[:16] or "00").startswith(b"emulated")


def train_on_cpu(address: str) -> bool:
    """Train a small model on the CPU first, whose loss falls. False if Ctrl-C ended it."""
    return run_training(address, CPU_NAME, ["--device", "cpu", "--steps", str(CPU_STEPS)])


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    main()

"""A port for a server that must be told its number: one that nobody takes before it listens."""

from __future__ import annotations

import random
import socket

BELOW_WHAT_SYSTEMS_GIVE = range(16_000, 32_000)
"""Linux gives connections, and sockets that ask for port 0, numbers from 32768 on. A port from there that was free a moment
ago can be another test's connection by the time a server wants it."""

_choice = random.SystemRandom()  # tests and the libraries they import seed the shared generator


def free_port() -> int:
    """A loopback port at which nothing listens now."""
    for port in _choice.sample(BELOW_WHAT_SYSTEMS_GIVE, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"none of 100 ports of {BELOW_WHAT_SYSTEMS_GIVE} is free")

"""``vramscope server``: runs the server until it is told to stop."""

from __future__ import annotations

import errno
import logging
import resource
import signal
import socket
import sys
from pathlib import Path

import httpx
import uvicorn
from pydantic import ValidationError

from vramscope_server import numba_warmup
from vramscope_server.app import create_app
from vramscope_server.http_limits import BoundedHeads
from vramscope_server.services import Services
from vramscope_server.settings import Settings
from vramscope_server.store.database import DatabaseRefused

BAD_WORDS = 2
"""Exit code: the words (or the surroundings that they name) were wrong."""
MOST_OPEN_FILES = 65_536
"""each connection is one, of a watcher, a training or somebody who never ends what was begun"""


def uvicorn_server(services: Services) -> uvicorn.Server:
    """A server for an open services, not started yet: the same for the command and for tests."""
    config = uvicorn.Config(
        create_app(services.settings, services),
        log_level=services.settings.log_level,
        http=BoundedHeads,
        access_log=services.settings.log_level in ("info", "debug"),
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        # Only a proxy on this machine may say for whom it speaks.
        forwarded_allow_ips="127.0.0.1",
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError, with a sentence, if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} of {host} is taken{_by_whom(host, port)}.") from error
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror or error}.") from error
    return listening


def serve(host: str | None, port: int | None, database: str | None, data_dir: Path | None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code: 0, or 2 if the server cannot start, with the reason told.

    What is None comes from the environment (docs/settings.md).
    """
    given = {"host": host, "port": port, "database": database and _as_url(database), "data_dir": data_dir}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        for fault in error.errors():
            name = "_".join(str(part) for part in fault["loc"])
            shown = f"--{name.replace('_', '-')}" if given.get(name) is not None else f"VRAMSCOPE_{name.upper()}"
            _say(f"{shown} cannot be {fault.get('input')!r}: {fault['msg']}.")
        return BAD_WORDS
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        listening = listen(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        _say(str(error))
        return BAD_WORDS
    try:
        services = Services(settings)
    except DatabaseRefused as error:
        listening.close()
        _say(str(error))
        return BAD_WORDS
    name, bound_port = listening.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    services.address = f"http://{shown}:{bound_port}"
    server = uvicorn_server(services)
    _allow_connections()

    def stop(*_: object) -> None:
        server.should_exit = True

    # Before uvicorn listens to signals this stops it, too; afterwards uvicorn raises the signal once more, and an orderly
    # end must not become a failure.
    signal.signal(signal.SIGTERM, stop)
    compiling = numba_warmup.start()
    try:
        _welcome(services)
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        if compiling is not None:
            compiling.kill()
            compiling.wait()
        services.close()
    return 0 if server.started else BAD_WORDS


def _allow_connections() -> None:
    """As many as the system lets us have: by custom a process begins with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _welcome(services: Services) -> None:
    lines = [f"vramscope is at {to_open(services.address or '?')}", f"  runs are kept in {services.database.shown}"]
    if services.first_token is not None:
        lines += [
            f"  token, shown only this once: {services.first_token}",
            "  sign in with it on the page; trainings take it as VRAMSCOPE_TOKEN",
        ]
    elif services.settings.tokens_required:
        lines.append("  tokens are demanded")
    lines += [f"  {problem}" for problem in services.problems()]
    print("\n".join(lines), flush=True)


def to_open(address: str) -> str:
    """What a browser takes: where every address is listened to, one of them."""
    for every, one in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        if every in address:
            return f"{address.replace(every, one)}, and at every other address of this machine"
    return address


def _as_url(database: str) -> str:
    """An SQLAlchemy URL; a plain path means an SQLite file."""
    return database if "://" in database else f"sqlite:///{Path(database).expanduser().absolute()}"


def _by_whom(host: str, port: int) -> str:
    """Most often the other one is a vramscope server, too; then there is nothing to start."""
    reached = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "::1" if host == "::" else host.strip("[]")
    url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
    try:
        health = httpx.get(f"{url}/api/v1/health", timeout=2, trust_env=False).json()
        if health["status"] in ("ok", "degraded"):
            return f" by a vramscope server that runs already: {url}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        pass
    return "; give another one with --port, or 0 for any that is free"


def _say(sentence: str) -> None:
    print(f"vramscope server: {sentence}", file=sys.stderr, flush=True)

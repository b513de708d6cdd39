"""``vramscope server``: run the server until a signal stops it."""

from __future__ import annotations

import errno
import logging
import re
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from vramscope_server import numba_warmup
from vramscope_server.app import create_app
from vramscope_server.artifact_store.store import ArtifactsRefused
from vramscope_server.cli import server_workers
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.http_limits import BoundedConnection
from vramscope_server.memory_allocator import return_freed_memory
from vramscope_server.notifications import TargetRefused, targets_of
from vramscope_server.services import Services
from vramscope_server.settings import Settings
from vramscope_server.store.storage_errors import DatabaseRefused

"""Exit code of wrong arguments or settings."""
_PASSWORD = re.compile(r"//[^/\s]*@")
MOST_OPEN_FILES = 65_536
"""Limit on open files. Each connection is one: pages, trainings, and clients that never finish a request."""


def uvicorn_server(services: Services) -> uvicorn.Server:
    """Create a server that is not started yet. The command and the tests use it."""
    return uvicorn.Server(_config(create_app(services.settings, services), services.settings))


def _config(app: FastAPI | str, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=settings.workers,
        timeout_worker_healthcheck=server_workers.STARTED_SECONDS,
        log_level=settings.log_level,
        http=BoundedConnection,
        access_log=settings.log_level in ("info", "debug"),
        server_header=False,
        date_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
        proxy_headers=False,  # the application applies them, after it kept the address of the connection
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError with a sentence if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} of {host} is in use{_by_whom(host, port)}.") from error
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror or error}.") from error
    return listening


def serve(
    host: str | None, port: int | None, database: str | None, data_dir: Path | None, workers: int | None = None
) -> int:
    """Run until SIGINT or SIGTERM. Returns 0, or 2 with a message if the server cannot start.

    Arguments that are None come from the environment (docs/settings.md).
    """
    named = {"host": host, "port": port, "database": database and _as_url(database), "data_dir": data_dir}
    named["workers"] = workers
    arguments = {name: value for name, value in named.items() if value is not None}
    try:
        settings = Settings(**arguments)  # type: ignore[arg-type]
    except ValidationError as error:
        for fault in error.errors():
            name = "_".join(str(part) for part in fault["loc"])
            shown = f"--{name.replace('_', '-')}" if arguments.get(name) is not None else f"VRAMSCOPE_{name.upper()}"
            given = _PASSWORD.sub("//...@", repr(fault.get("input")))
            _print_error(f"{shown} cannot be {given}: {fault['msg']}.")
        return BAD_ARGUMENTS
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    return_freed_memory()
    try:
        listening = listen(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        _print_error(str(error))
        return BAD_ARGUMENTS
    name, bound_port = listening.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    address = f"http://{shown}:{bound_port}"
    if settings.workers > 1:
        return _serve_with_workers(settings, arguments, listening, address)
    try:
        services = Services(settings)
    except (DatabaseRefused, ArtifactsRefused, TargetRefused) as error:
        listening.close()
        _print_error(str(error))
        return BAD_ARGUMENTS
    services.address = address
    server = uvicorn_server(services)
    _allow_connections()

    def stop(*_: object) -> None:
        server.should_exit = True

    # Stops uvicorn before it handles signals itself. Later it raises the signal again, and an orderly end must not
    # become a failure.
    signal.signal(signal.SIGTERM, stop)
    compiling = numba_warmup.start()
    try:
        _welcome(settings, address, services.database.shown, services.first_token, services.problems())
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        if compiling is not None:
            compiling.kill()
            compiling.wait()
        services.close()
    return 0 if server.started else BAD_ARGUMENTS


def _serve_with_workers(
    settings: Settings, arguments: Mapping[str, object], listening: socket.socket, address: str
) -> int:
    with listening:
        try:
            database, token = server_workers.prepare(settings)
            targets_of(settings.notify)
        except (DatabaseRefused, ArtifactsRefused, TargetRefused) as error:
            _print_error(str(error))
            return BAD_ARGUMENTS
        _allow_connections()
        compiling = numba_warmup.start()
        try:
            _welcome(settings, address, database, token, [f"{settings.workers} processes"])
            config = _config("vramscope_server.cli.server_workers:worker_app", settings)
            server_workers.run_workers(settings, arguments, listening, address, config)
        finally:
            if compiling is not None:
                compiling.kill()
                compiling.wait()
    return 0


def _allow_connections() -> None:
    """Raise the limit on open files as far as the system permits. The usual default is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _welcome(settings: Settings, address: str, database: str, first_token: str | None, more: list[str]) -> None:
    lines = [f"vramscope is running at {to_open(address)}", f"  database: {database}"]
    if first_token is not None:
        lines += [
            f"  token, shown only once: {first_token}",
            "  use it to sign in; set it as VRAMSCOPE_TOKEN for trainings",
        ]
    elif settings.tokens_required:
        lines.append("  tokens are required")
    if settings.proxy_user_header is not None:
        lines.append(f"  a proxy names users in the header {settings.proxy_user_header}")
    lines += [f"  {line}" for line in more]
    print("\n".join(lines), flush=True)


def to_open(address: str) -> str:
    """Return an address for a browser. Of a server that listens at all addresses, loopback."""
    for every, one in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        if every in address:
            return f"{address.replace(every, one)}, and at every other address of this machine"
    return address


def _as_url(database: str) -> str:
    """Return an SQLAlchemy URL. A plain path means an SQLite file."""
    return database if "://" in database else f"sqlite:///{Path(database).expanduser().absolute()}"


def _by_whom(host: str, port: int) -> str:
    """Describe the program that uses a port. Most often it is another vramscope server."""
    reached = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "::1" if host == "::" else host.strip("[]")
    url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
    try:
        health = httpx.get(f"{url}/api/v1/health", timeout=2, trust_env=False).json()
        if health["status"] in ("ok", "degraded"):
            return f" by another vramscope server: {url}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        pass
    return "; use another --port (0 = any free port)"


def _print_error(sentence: str) -> None:
    print(f"vramscope server: {sentence}", file=sys.stderr, flush=True)

"""Requests to a server, and its answers as typed values."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

import httpx
import msgspec

from vramscope.client.answers import Problem
from vramscope.client.errors import ServerError
from vramscope.setting_values import is_loopback
from vramscope.settings import Settings
from vramscope.transport.tls import tls_problem

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 180.0
"""A replay may take more than a minute."""
PROBLEM: Final = "urn:vramscope:problem:"
"""Beginning of the type of a refusal."""

Answer = TypeVar("Answer")


def _certificates(server: str) -> ssl.SSLContext | bool:
    """Return the certificates that are trusted: those of SSL_CERT_FILE, on loopback too. Raises ServerError."""
    if not server.startswith("https:"):
        return False
    try:
        return httpx.create_ssl_context()
    except OSError as fault:
        raise ServerError(f"the certificates of this machine cannot be read: {fault}") from fault


class Connection:
    """Keeps one connection to a server open. For one thread at a time."""

    def __init__(self, server: str | None, token: str | None) -> None:
        settings = Settings.from_environment(server=server, token=token)
        self.server = settings.server
        headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._client = httpx.Client(
            base_url=f"{self.server}/api/v1",
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=not is_loopback(self.server),
            verify=_certificates(self.server),
            headers=headers,
        )

    def get(self, path: str, kind: type[Answer], parameters: Mapping[str, Any] | None = None) -> Answer:
        """Return the answer as a value of ``kind``. Parameters that are None are left out. Raises ServerError."""
        return self._decoded(self._answer(path, parameters), kind)

    def get_rows(self, path: str, parameters: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """Return the rows of a table, and the answer's headers. Raises ServerError."""
        response = self._answer(path, parameters)
        return self._decoded(response, list[dict[str, Any]]), response.headers

    def _answer(self, path: str, parameters: Mapping[str, Any] | None) -> httpx.Response:
        query = {name: value for name, value in (parameters or {}).items() if value is not None}
        try:
            response = self._client.get(path, params=query)
        except httpx.HTTPError as fault:
            reason = tls_problem(self.server, fault) or f"no answer from {self.server}: {fault or type(fault).__name__}"
            raise ServerError(reason) from fault
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _decoded(self, response: httpx.Response, kind: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(response.content, type=kind, strict=False)
        except (msgspec.DecodeError, msgspec.ValidationError) as fault:
            raise ServerError(
                f"{self.server} answered what this version of vramscope does not understand: {fault}",
                status=response.status_code,
            ) from fault

    def _refusal(self, response: httpx.Response) -> ServerError:
        try:
            problem = msgspec.json.decode(response.content, type=Problem)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return ServerError(
                f"{self.server} is no vramscope server, or a proxy answered: HTTP {response.status_code}"
            )
        parts = [problem.detail]
        if problem.expected:
            parts.append(f"Expected: {problem.expected}.")
        if problem.suggestions:
            parts.append(f"Similar: {', '.join(problem.suggestions)}.")
        return ServerError(
            " ".join(parts), status=response.status_code, problem=problem.type.removeprefix(PROBLEM) or None
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

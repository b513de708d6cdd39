"""Users that an authenticating proxy signed in, and names in a header.

Anybody can send such a header. It counts only if the connection itself comes from a trusted proxy, which removes what its
clients send under that name. ``X-Forwarded-For`` says nothing about that: the address of the connection is kept before it
is applied.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from vramscope_server.api.problems import Forbidden
from vramscope_server.caller import Caller
from vramscope_server.settings import Settings
from vramscope_server.store.project_scope import ALL_PROJECTS
from vramscope_server.user_grants import UserGrants

PEER: Final = "vramscope.peer"
"""Key of the connection's address in the ASGI scope; None for a Unix socket."""
MAX_NAME: Final = 200


class PeerAddress:
    """ASGI middleware, the outermost: keeps the address of the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        client = scope.get("client")
        scope[PEER] = client[0] if client else None
        await self._app(scope, receive, send)


class ProxyUsers:
    """Recognizes users by the header of ``VRAMSCOPE_PROXY_USER_HEADER``; nobody if it is not set."""

    def __init__(self, settings: Settings) -> None:
        self._header = (settings.proxy_user_header or "").lower().encode("ascii")
        self._networks = [ipaddress.ip_network(one) for one in settings.trusted_proxies]
        self._role = settings.proxy_role
        self._admins = frozenset(settings.proxy_admins)
        self._groups_header = (settings.proxy_groups_header or "").lower().encode("ascii")
        self._grants = UserGrants(settings.groups)

    def caller(self, request: Request, address: str) -> Caller | None:
        """The user of a request; None if no trusted proxy names one. Raises Forbidden for a header that is not one name."""
        if not self._header or not self._is_trusted(request.scope.get(PEER)):
            return None
        values = [value for name, value in request.scope["headers"] if name == self._header]
        texts = [_text(value) for value in values]
        if not any(texts):
            return None
        name = texts[0]
        # Caddy sends a placeholder, "{http...}", where the sign-in has no such value.
        if len(texts) > 1 or len(name) > MAX_NAME or not name.isprintable() or name.startswith("{"):
            raise Forbidden(
                "The proxy sent more or other than the name of one user.",
                field=self._header.decode("ascii"),
                expected=f"one name of at most {MAX_NAME} printable characters",
            )
        if name in self._admins:
            return Caller(name, "admin", ALL_PROJECTS, None, address)
        if not self._groups_header:
            return Caller(name, self._role, ALL_PROJECTS, None, address)
        grant = self._grants.find(self._groups(request))
        if grant is None:
            raise Forbidden(
                f"The user {name!r} has no group that VRAMSCOPE_GROUPS gives access to.",
                field=self._groups_header.decode("ascii"),
            )
        return Caller(name, grant.role, grant.scope, None, address)

    def _groups(self, request: Request) -> list[str]:
        values = [_text(value) for name, value in request.scope["headers"] if name == self._groups_header]
        return [group.strip() for value in values for group in value.split(",") if group.strip()]

    def _is_trusted(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _text(value: bytes) -> str:
    """Names are UTF-8 where a proxy sends more than ASCII."""
    try:
        return value.decode().strip()
    except UnicodeDecodeError:
        return value.decode("latin-1").strip()

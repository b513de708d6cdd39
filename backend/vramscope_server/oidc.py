"""Sign-in by OpenID Connect: authorization code with PKCE, state and nonce. Authlib does the protocol.

Who signed in is kept in a signed cookie, so that every server process recognizes it. The key comes from the client secret.
The cookie names the user and the group that counted at sign-in. What the group may do is looked up for each request, so
that a changed setting counts after a restart, without a new sign-in.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from starlette.requests import Request

from vramscope_server.caller import Caller
from vramscope_server.settings import Settings
from vramscope_server.user_grants import UserGrant, UserGrants

USER_COOKIE: Final = "vramscope_user"
FLOW_COOKIE: Final = "vramscope_sign_in"
PATH: Final = "/api/v1/session/oidc"
USER_SECONDS: Final = 12 * 3600
"""Time after which a user signs in again."""
FLOW_SECONDS: Final = 600
"""Time for the sign-in at the provider."""
_TIMEOUT_SECONDS: Final = 10.0
_LEEWAY_SECONDS: Final = 60
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Signatures that need the provider's private key. Others (HS256, none) are refused."""
MAX_NAME: Final = 200
MOST_AT_ONCE: Final = 2
"""Number of sign-ins that may ask the provider at a time. Each blocks one of the server's few threads."""


class SignInFailed(Exception):
    """The provider, or what came back from it, does not let the user in. The text says why."""


@dataclass(frozen=True, slots=True)
class SignInStart:
    """Address of the provider, and the cookie that the answer of the provider must meet."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True)
class SignedInUser:
    """A user with access, and the cookie that says so."""

    name: str
    grant: UserGrant
    cookie: str


class OidcSignIn:
    """Sign-in at the provider of ``VRAMSCOPE_OIDC_ISSUER``."""

    def __init__(self, settings: Settings) -> None:
        self._issuer = settings.oidc_issuer or ""
        self._client_id = settings.oidc_client_id or ""
        self._client_secret = settings.oidc_client_secret or ""
        self._name_claim = settings.oidc_name_claim
        self._groups_claim = settings.oidc_groups_claim
        self._grants = UserGrants(settings.groups)
        self._turns = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._key = hashlib.sha256(b"vramscope session\0" + self._client_secret.encode()).hexdigest()

    @property
    def is_on(self) -> bool:
        """Whether a provider is set."""
        return bool(self._issuer)

    def begin(self, callback: str) -> SignInStart:
        """Start a sign-in that comes back to ``callback``. Blocks. Raises SignInFailed."""
        verifier, nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        with self._http() as http:
            endpoint = _text(self._metadata(http), "authorization_endpoint")
        with self._client(callback) as client:
            url, state = client.create_authorization_url(endpoint, nonce=nonce, code_verifier=verifier)
        flow = {"kind": "flow", "state": state, "nonce": nonce, "verifier": verifier, "callback": callback}
        return SignInStart(url, self._sign(flow, FLOW_SECONDS))

    def finish(self, parameters: Mapping[str, str], cookie: str | None) -> SignedInUser:
        """Exchange the provider's code for the user. Blocks. Raises SignInFailed."""
        flow = self._read(cookie, "flow")
        if flow is None or not secrets.compare_digest(
            str(flow["state"]).encode(), parameters.get("state", "").encode()
        ):
            raise SignInFailed("The sign-in was not started here, or ten minutes ago. Start it again.")
        if "code" not in parameters:
            words = parameters.get("error_description") or parameters.get("error") or "it sent no code"
            raise SignInFailed(f"The provider refused: {words[:200]}")
        with self._http() as http:
            metadata = self._metadata(http)
            keys = _answer(http, _text(metadata, "jwks_uri"))
        token = self._token(metadata, flow, parameters["code"])
        claims = self._claims(token, keys, flow)
        if "userinfo_endpoint" in metadata and None in (_at(claims, self._groups_claim), _at(claims, self._name_claim)):
            claims = {**self._userinfo(metadata, token, claims), **claims}
        name = str(_at(claims, self._name_claim) or claims["sub"]).strip()
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise SignInFailed(
                f"The claim {self._name_claim!r} is not a name of at most {MAX_NAME} printable characters."
            )
        grant = self._grants.find(_names(_at(claims, self._groups_claim)))
        if grant is None:
            raise SignInFailed(f"{name} has no group that VRAMSCOPE_GROUPS gives access to.")
        return SignedInUser(name, grant, self._sign({"kind": "user", "name": name, "group": grant.group}, USER_SECONDS))

    def caller(self, request: Request, address: str) -> Caller | None:
        """The user of a request by its cookie; None if there is none, or its group has lost its access."""
        found = self._read(request.cookies.get(USER_COOKIE), "user") if self.is_on else None
        grant = None if found is None else self._grants.find([str(found["group"])])
        if found is None or grant is None or grant.group != found["group"]:
            return None
        return Caller(str(found["name"]), grant.role, grant.scope, None, address)

    # -- the provider

    def _http(self) -> httpx.Client:
        return httpx.Client(timeout=_TIMEOUT_SECONDS)

    def _client(self, callback: str) -> Any:
        from authlib.integrations.httpx_client import OAuth2Client

        return OAuth2Client(
            self._client_id,
            self._client_secret,
            scope="openid profile email",
            redirect_uri=callback,
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
        )

    def _metadata(self, http: httpx.Client) -> dict[str, Any]:
        if not self._turns.acquire(blocking=False):
            raise SignInFailed("Too many people sign in at the same time. Try again.")
        try:
            metadata = _answer(http, f"{self._issuer}/.well-known/openid-configuration")
        finally:
            self._turns.release()
        if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
            raise SignInFailed(f"The provider calls itself {str(metadata.get('issuer'))[:200]}, not {self._issuer}.")
        return metadata

    def _token(self, metadata: Mapping[str, Any], flow: Mapping[str, Any], code: str) -> dict[str, Any]:
        from authlib.common.errors import AuthlibBaseError

        try:
            with self._client(str(flow["callback"])) as client:
                token: dict[str, Any] = client.fetch_token(
                    _text(metadata, "token_endpoint"), code=code, code_verifier=flow["verifier"]
                )
        except (AuthlibBaseError, httpx.HTTPError, ValueError) as fault:
            raise SignInFailed(f"The provider gave no token: {str(fault)[:200]}") from fault
        return token

    def _claims(self, token: Mapping[str, Any], keys: dict[str, Any], flow: Mapping[str, Any]) -> dict[str, Any]:
        """Checked claims of the ID token."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        try:
            decoded = jwt.decode(_text(token, "id_token"), KeySet.import_key_set(keys), algorithms=list(_ALGORITHMS))
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={"aud": {"essential": True, "value": self._client_id}},
                params={
                    "nonce": flow["nonce"],
                    "client_id": self._client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
        except (JoseError, ValueError, KeyError, TypeError) as fault:
            raise SignInFailed(f"The ID token is not valid: {str(fault)[:200]}") from fault
        if str(claims["iss"]).rstrip("/") != self._issuer or claims.get("nonce") != flow["nonce"]:
            raise SignInFailed("The ID token is of another provider or another sign-in.")
        return dict(claims)

    def _userinfo(
        self, metadata: Mapping[str, Any], token: Mapping[str, Any], claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        with self._http() as http:
            http.headers["Authorization"] = f"Bearer {token.get('access_token')}"
            found = _answer(http, _text(metadata, "userinfo_endpoint"))
        if found.get("sub") != claims["sub"]:
            raise SignInFailed("The provider described another user.")
        return found

    # -- cookies

    def _sign(self, claims: dict[str, Any], seconds: int) -> str:
        from joserfc import jwt
        from joserfc.jwk import OctKey

        whole = {**claims, "aud": self._client_id, "exp": int(time.time()) + seconds}
        return str(jwt.encode({"alg": "HS256"}, whole, OctKey.import_key(self._key)))

    def _read(self, cookie: str | None, kind: str) -> dict[str, Any] | None:
        """Claims of a cookie of ours that has not expired; else None."""
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import OctKey

        if not cookie:
            return None
        try:
            claims: dict[str, Any] = jwt.decode(cookie, OctKey.import_key(self._key), algorithms=["HS256"]).claims
        except (JoseError, ValueError):
            return None
        is_ours = claims.get("kind") == kind and claims.get("aud") == self._client_id
        return claims if is_ours and claims.get("exp", 0) > time.time() else None


def _answer(http: httpx.Client, url: str) -> dict[str, Any]:
    """JSON object at an address of the provider. Raises SignInFailed."""
    try:
        answer = http.get(url).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as fault:
        raise SignInFailed(f"The provider does not answer: {str(fault)[:200]}") from fault
    if not isinstance(answer, dict):
        raise SignInFailed(f"{url} is not an answer of an OpenID provider.")
    return answer


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise SignInFailed(f"The provider's answer has no {name}.")
    return value


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """Value of a claim; of ``a.b`` also that of b inside a."""
    if path in claims:
        return claims[path]
    inside: Any = claims
    for name in path.split("."):
        inside = inside.get(name) if isinstance(inside, Mapping) else None
    return inside


def _names(value: Any) -> Iterable[str]:
    """Groups of a claim that is a list of names, or one name."""
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []

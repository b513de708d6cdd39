"""Reasons why no encrypted connection was made, in words."""

from __future__ import annotations

from typing import Final

_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes of certificates that nobody known has signed. With the authority's own certificate they would be valid."""
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
)
"""OpenSSL's reasons, by its version, where the answer was not encrypted."""


def tls_problem(server: str, fault: BaseException) -> str | None:
    """Return why no encrypted connection to ``server`` was made; None for other faults."""
    import ssl  # a training that sends nothing, or to http, need not load it

    cause: BaseException | None = fault
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or isinstance(cause, ssl.SSLEOFError):  # the connection ended, as it may without encryption
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = str(cause.verify_message or cause.reason).rstrip(".")
        advice = ""
        if cause.verify_code in _UNKNOWN_AUTHORITY:
            advice = "; SSL_CERT_FILE names a file with the certificate of its authority"
        return f"the certificate of {server} is not valid ({reason}){advice}"
    reason = str(cause.reason or cause)
    question = "; is it http?" if reason in _NOT_TLS else ""
    return f"no encrypted connection to {server} ({reason.replace('_', ' ').lower()}{question})"

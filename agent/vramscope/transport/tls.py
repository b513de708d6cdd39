"""Reasons why no encrypted connection was made, in words."""

from __future__ import annotations

from typing import Final

_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes of certificates that nobody known has signed. With the authority's own certificate they would be valid."""
_MOST_CAUSES: Final = 8
"""Number of causes of causes that are looked through."""
_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"}
)
"""OpenSSL's reasons, by its version, where the answer was not encrypted."""


def tls_problem(server: str, fault: BaseException) -> str | None:
    """Return why no encrypted connection to ``server`` was made; None for other faults."""
    import ssl  # a training that sends nothing, or to http, need not load it

    cause: BaseException | None = fault
    for _ in range(_MOST_CAUSES):
        if cause is None or isinstance(cause, ssl.SSLError):
            break
        cause = cause.__cause__ or cause.__context__
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, ssl.SSLEOFError):  # one that ended may not be encrypted
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = str(getattr(cause, "verify_message", None) or cause).rstrip(".")
        advice = ""
        if getattr(cause, "verify_code", None) in _UNKNOWN_AUTHORITY:
            advice = "; set SSL_CERT_FILE to a file with the certificate of its authority"
        return f"the certificate of {server} is not valid ({reason}){advice}"
    reason = str(getattr(cause, "reason", None) or cause)
    question = "; is it http?" if reason in _NOT_TLS else ""
    return f"no encrypted connection to {server} ({reason.replace('_', ' ').lower()}{question})"

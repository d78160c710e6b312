"""Who may ask: names by which the page may be called, tokens, and sessions of browsers.

A page on the internet can have a name that leads to 127.0.0.1 (DNS rebinding) and would then read what is served here.
It cannot choose what its browser sends as Host, so only numeric addresses, `localhost` and names that were given
at the start are answered. Pure but for the token file; knows no HTTP library.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final

from rootwalk.otel_receiver.access import BearerTokens

__all__ = ["SECURITY_HEADERS", "Sessions", "allowed_host"]

# Style and script come from here and nowhere else; nothing may be framed, sent elsewhere or kept by the browser.
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A browser asks for its token again after so long.
SESSION_S: Final = 12 * 3600.0
# Sessions that are remembered; the oldest goes when one more begins.
MAX_SESSIONS: Final = 256


def allowed_host(header: str | None, names: Iterable[str]) -> bool:
    """Return whether a request may carry this Host header.

    Args:
        header: Its value, None without one.
        names: Names that are allowed beside `localhost` and numeric addresses.

    >>> allowed_host("127.0.0.1:8787", ()), allowed_host("[::1]:8787", ()), allowed_host("evil.example", ())
    (True, True, False)
    """
    if not header:
        return False
    host = header.strip().lower()
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = host.partition(":")
    if port and not port.isdigit():
        return False
    host = host.rstrip(".")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host in {name.lower() for name in names}
    return True


class Sessions:
    """Browsers that have shown a token: each has a random name in a cookie for it, and falls with its token.

    Args:
        tokens: The tokens that count now.
        now_s: A clock for ages.
    """

    def __init__(self, tokens: BearerTokens, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._now_s = now_s
        self._token_by_session: dict[str, tuple[str, float]] = {}

    def begin(self, token: str) -> str | None:
        """Return the name of a new session, None where the token is not one."""
        if not self._tokens.accepts(f"Bearer {token}"):
            return None
        session = secrets.token_urlsafe(32)
        while len(self._token_by_session) >= MAX_SESSIONS:
            self._token_by_session.pop(next(iter(self._token_by_session)))
        self._token_by_session[session] = (token, self._now_s() + SESSION_S)
        return session

    def admits(self, authorization: str | None, session: str | None) -> bool:
        """Return whether a request may be answered, by its Authorization header or by its session."""
        if self._tokens.accepts(authorization):
            return True
        token, end_s = self._token_by_session.get(session or "", ("", 0.0))
        if not token or self._now_s() >= end_s or not self._tokens.accepts(f"Bearer {token}"):
            self._token_by_session.pop(session or "", None)
            return False
        return True

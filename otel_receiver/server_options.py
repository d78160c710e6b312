"""What both servers need to know besides their addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

from rootwalk.otel_receiver.access import BearerTokens, TlsFiles
from rootwalk.otel_receiver.answers import Result
from rootwalk.otel_receiver.connection_limit import ConnectionLimit
from rootwalk.otel_receiver.ingest import IngestRefusal

__all__ = ["ServerOptions"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How senders are let in.

    Attributes:
        tls: Certificates; None to speak in the clear.
        tokens: Tokens one of which a sender must show; None lets everyone send.
        keepalive_s: Idle time after which a connection is probed (gRPC) or closed (HTTP).
        read_timeout_s: Longest time that a sender may take over one body.
        cors_origins: Origins whose pages may send from browsers; "*" for all.
        connections: Where the connections of both are counted and limited.
    """

    tls: TlsFiles | None = None
    tokens: BearerTokens | None = None
    keepalive_s: float = 120.0
    read_timeout_s: float = 30.0
    cors_origins: tuple[str, ...] = ()
    connections: ConnectionLimit = field(default_factory=ConnectionLimit)

    def check_token(self, authorization: str | None) -> None:
        """Check the value of an Authorization header.

        Raises:
            IngestRefusal: If tokens are asked for and it shows none of them.
        """
        if self.tokens is not None and not self.tokens.accepts(authorization):
            saw = "no token" if authorization is None else "none of the tokens"
            raise IngestRefusal(
                Result.UNAUTHENTICATED,
                f'cannot accept the request: saw {saw}; needs "authorization: Bearer TOKEN"',
            )

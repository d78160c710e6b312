"""Who may send: TLS certificates, certificates of clients, and bearer tokens from a file."""

from __future__ import annotations

import hashlib
import hmac
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["BearerTokens", "TlsFiles"]

logger = logging.getLogger(__name__)

# A changed token file counts after at most so long; a stat costs 2 us, a request some 200.
RECHECK_INTERVAL_S: Final = 1.0
_SCHEME: Final = "bearer "


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server.

    Attributes:
        certificate: Its certificate, with the chain to a root.
        key: Its private key, without a passphrase.
        client_ca: Certificates of those who sign clients' certificates; None lets clients come without one.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def server_context(self) -> ssl.SSLContext:
        """Return what a TLS server needs.

        Raises:
            ConfigError: If a file cannot be read, or is not what its option says.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._check_readable()
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f'cannot use the certificate "{self.certificate}" with the key "{self.key}": {_reason(error)}; '
                "needs a certificate and its own private key, as PEM without a passphrase",
                hint="--tls-cert PATH --tls-key PATH",
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise ConfigError(
                    f'cannot use "{self.client_ca}" for --client-ca: {_reason(error)}; '
                    "needs certificates as PEM"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _check_readable(self) -> None:
        for path in (self.certificate, self.key, self.client_ca):
            if path is not None:
                _read(path)


class BearerTokens:
    """Tokens that senders may show, one a line of a file that may change while the receiver runs.

    Raises:
        ConfigError: From the constructor, if the file cannot be read or holds no token.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = self._read_stamp()
        self._digests = self._read_digests()
        self._checked_s = clock()
        if not self._digests:
            raise ConfigError(
                f'cannot take tokens from "{path}": saw none; needs one token a line',
                hint=f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}",
            )

    def accepts(self, authorization: str | None) -> bool:
        """Say whether the value of an Authorization header shows one of the tokens."""
        self._reread()
        if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        digest = _digest(authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape"))
        # All are compared, each in constant time: neither which one nor how much of it was right can be timed.
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0

    def _reread(self) -> None:
        now_s = self._clock()
        if now_s - self._checked_s < RECHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            self._digests = self._read_digests()
        except ConfigError as error:
            if self._stamp != (0, 0, 0):
                logger.warning("%s; the tokens that it held stay valid", error)
                self._stamp = (0, 0, 0)
            return
        self._stamp = stamp
        logger.info("the token file %s now holds %d tokens", self._path, len(self._digests))

    def _read_stamp(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise _cannot_read(self._path, error) from error
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read_digests(self) -> list[bytes]:
        lines = _read(self._path).splitlines()
        return [_digest(line.strip()) for line in lines if line.strip()]


def _digest(token: bytes) -> bytes:
    # Of equal length for all tokens: a comparison tells no length.
    return hashlib.sha256(token).digest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _cannot_read(path, error) from error


def _cannot_read(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f'cannot read "{path}": {(error.strerror or str(error)).lower()}; needs a file that this user can read'
    )


def _refuse_passphrase() -> str:
    raise ValueError("saw a key with a passphrase")


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")

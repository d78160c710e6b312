"""The two transports: OTLP/gRPC and OTLP/HTTP in one event loop.

gRPC methods are registered without a deserializer, so the wire bytes go to `Ingest` as they came. Every HTTP error
carries a google.rpc.Status in the request's content type.

Source:
    OTLP 1.11: paths, ports, status codes, Status bodies, RetryInfo and Retry-After.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from aiohttp import web
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.ingest import (
    MAX_REQUEST_BYTES,
    RETRY_AFTER_S,
    Ingest,
    Outcome,
    Result,
)
from rootwalk.otel_receiver.signals import Signal

__all__ = ["GrpcServer", "HttpServer", "ListenAddress", "parse_address"]

logger = logging.getLogger(__name__)

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
HTTP_PATHS: Final = {Signal.TRACES: "/v1/traces", Signal.METRICS: "/v1/metrics"}
REFUSED_PATHS: Final = {"/v1/logs": "logs", "/v1development/profiles": "profiles"}
_SERVICE: Final = "opentelemetry.proto.collector"
GRPC_SERVICES: Final = {
    Signal.TRACES: f"{_SERVICE}.trace.v1.TraceService",
    Signal.METRICS: f"{_SERVICE}.metrics.v1.MetricsService",
}
REFUSED_SERVICES: Final = {
    "logs": f"{_SERVICE}.logs.v1.LogsService",
    "profiles": f"{_SERVICE}.profiles.v1development.ProfilesService",
}
# Time that requests in progress have to end when the server stops.
GRACE_S: Final = 5.0

_GRPC_CODES: Final = {
    Result.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Result.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Result.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
_HTTP_CODES: Final = {
    Result.MALFORMED: (400, Code.INVALID_ARGUMENT),
    Result.TOO_LARGE: (413, Code.RESOURCE_EXHAUSTED),
    Result.UNAVAILABLE: (503, Code.UNAVAILABLE),
}


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, option: str) -> ListenAddress:
    """Return HOST:PORT as an address.

    Raises:
        ConfigError: If it is not of that form.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f'cannot listen on "{text}": saw no host and port; needs HOST:PORT with a port up to 65535',
            hint=f"{option} 127.0.0.1:0 lets the system choose a free port",
        )
    return ListenAddress(host, int(port))


def _bind(address: ListenAddress, option: str) -> socket.socket:
    """Return a bound socket.

    Raises:
        ConfigError: If the address is in use or is not an address of this machine.
    """
    bound: socket.socket | None = None
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        bound.listen(128)
    except OSError as error:
        if bound is not None:
            bound.close()
        saw = (
            (error.strerror or str(error))
            .lower()
            .replace("address already in use", "address in use")
        )
        raise ConfigError(
            f"cannot listen on {address}: {saw}; needs a free port of this machine",
            hint=f"{option} 127.0.0.1:0 lets the system choose a free port",
        ) from error
    return bound


class GrpcServer:
    """OTLP/gRPC; `start` once, then `stop` once or more."""

    def __init__(self, ingest: Ingest, address: ListenAddress) -> None:
        self._ingest = ingest
        self._address = address
        self._server: Any = None

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        # gRPC reports a taken port as a log line of its own and a bare RuntimeError; a plain bind says why.
        _bind(self._address, "--grpc").close()
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            port = server.add_insecure_port(str(self._address))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self._address}: {error}; needs a free port of this machine",
                hint="--grpc 127.0.0.1:0 lets the system choose a free port",
            ) from error
        await server.start()
        self._server = server
        return ListenAddress(self._address.host, port)

    async def stop(self) -> None:
        """Let requests in progress end, then close."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(GRACE_S)

    def _handlers(self) -> list[Any]:
        methods = {GRPC_SERVICES[signal]: self._export_method(signal) for signal in Signal}
        methods |= {service: _refuse_method(name) for name, service in REFUSED_SERVICES.items()}
        return [
            grpc.method_handlers_generic_handler(
                service, {"Export": grpc.unary_unary_rpc_method_handler(method)}
            )
            for service, method in methods.items()
        ]

    def _export_method(self, signal: Signal) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def export(body: bytes, context: Any) -> bytes:
            outcome = await self._ingest.accept(signal, body)
            if outcome.result is not Result.DURABLE:
                if outcome.result is Result.UNAVAILABLE:
                    details = _retry_status(outcome.message).SerializeToString()
                    context.set_trailing_metadata((("grpc-status-details-bin", details),))
                await context.abort(_GRPC_CODES[outcome.result], outcome.message)
            return outcome.body

        return export


def _refuse_method(signal_name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def refuse(_body: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, _refusal(signal_name))
        return b""

    return refuse


def _refusal(signal_name: str) -> str:
    return (
        f"cannot accept {signal_name}: this version stores traces and metrics; "
        f"needs an exporter that sends no {signal_name} here"
    )


def _retry_status(message: str) -> Status:
    retry = RetryInfo()
    retry.retry_delay.seconds = RETRY_AFTER_S
    status = Status(code=Code.UNAVAILABLE, message=message)
    status.details.add().Pack(retry)
    return status


class HttpServer:
    """OTLP/HTTP with protobuf bodies; `start` once, then `stop` once or more."""

    def __init__(self, ingest: Ingest, address: ListenAddress) -> None:
        self._ingest = ingest
        self._address = address
        self._runner: web.AppRunner | None = None

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        for signal, path in HTTP_PATHS.items():
            application.router.add_post(path, self._export_route(signal))
        for path, signal_name in REFUSED_PATHS.items():
            application.router.add_post(path, _refuse_route(signal_name))
        application.router.add_get("/", _health)
        application.router.add_get("/health", _health)
        application.middlewares.append(_status_bodies)
        bound = _bind(self._address, "--http")
        port = bound.getsockname()[1]
        # Bodies are decompressed here, with a limit, and not by aiohttp.
        runner = web.AppRunner(
            application, auto_decompress=False, access_log=None, shutdown_timeout=GRACE_S
        )
        await runner.setup()
        await web.SockSite(runner, bound).start()
        self._runner = runner
        return ListenAddress(self._address.host, port)

    async def stop(self) -> None:
        """Let requests in progress end, then close."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def _export_route(self, signal: Signal) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def export(request: web.Request) -> web.Response:
            if request.content_type != PROTOBUF:
                return _error(
                    request,
                    415,
                    Code.INVALID_ARGUMENT,
                    f'cannot read content type "{request.content_type}"; needs {PROTOBUF}',
                )
            outcome = await self._read(signal, request)
            if isinstance(outcome, bytes):
                outcome = await self._ingest.accept(signal, outcome)
            if outcome.result is Result.DURABLE:
                return web.Response(body=outcome.body, content_type=PROTOBUF)
            status, code = _HTTP_CODES[outcome.result]
            return _error(request, status, code, outcome.message)

        return export

    async def _read(self, signal: Signal, request: web.Request) -> bytes | Outcome:
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return self._ingest.refuse_size(signal)
        try:
            return decompress(raw, encoding, MAX_REQUEST_BYTES)
        except OverflowError:
            return self._ingest.refuse_size(signal)
        except ValueError as error:
            return self._ingest.refuse_malformed(signal, str(error))


def decompress(raw: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return a request body without its content encoding.

    Raises:
        ValueError: If the encoding is unknown, or the bytes are not of that encoding.
        OverflowError: If it is larger than the limit; no more than the limit is ever held.
    """
    if encoding in ("identity", ""):
        return raw
    if encoding not in ("gzip", "deflate"):
        raise ValueError(
            f'cannot read content encoding "{encoding}"; needs gzip, deflate or identity'
        )
    window_bits = 31 if encoding == "gzip" else _deflate_window_bits(raw)
    parts: list[bytes] = []
    size_bytes = 0
    rest = raw
    try:
        # A gzip body may be several members, one after the other.
        while rest:
            stream = zlib.decompressobj(window_bits)
            parts.append(stream.decompress(rest, limit_bytes - size_bytes + 1))
            size_bytes += len(parts[-1])
            if size_bytes > limit_bytes:
                raise OverflowError
            if not stream.eof:
                raise ValueError(
                    f"cannot decompress the body: saw the end in mid-stream; needs whole {encoding}"
                )
            rest = stream.unused_data if encoding == "gzip" else b""
    except zlib.error as error:
        raise ValueError(
            f"cannot decompress the body: {error}; needs {encoding} as its header says"
        ) from error
    return b"".join(parts)


def _deflate_window_bits(raw: bytes) -> int:
    # RFC 9110 means the zlib format by "deflate"; some senders mean the raw one.
    is_zlib = len(raw) >= 2 and raw[0] & 0x0F == 8 and (raw[0] << 8 | raw[1]) % 31 == 0
    return 15 if is_zlib else -15


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _refuse_route(signal_name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def refuse(request: web.Request) -> web.Response:
        with contextlib.suppress(web.HTTPRequestEntityTooLarge):
            await request.read()
        return _error(request, 404, Code.UNIMPLEMENTED, _refusal(signal_name))

    return refuse


@web.middleware
async def _status_bodies(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Give the router's own refusals the same body as ours."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        saw = f'cannot find the path "{request.path}"; needs {" or ".join(HTTP_PATHS.values())}'
        return _error(request, 404, Code.UNIMPLEMENTED, saw)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _error(
            request, 405, Code.UNIMPLEMENTED, f"cannot {request.method} here; needs {allowed}"
        )
        response.headers["Allow"] = allowed
        return response


def _error(request: web.Request, http_status: int, code: int, message: str) -> web.Response:
    if request.content_type == JSON:
        text = json.dumps({"code": code, "message": message})
        response = web.Response(text=text, status=http_status, content_type=JSON)
    else:
        body = Status(code=code, message=message).SerializeToString()
        response = web.Response(body=body, status=http_status, content_type=PROTOBUF)
    if http_status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response

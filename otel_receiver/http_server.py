"""OTLP over HTTP, in protobuf and JSON.

Every answer has the form of its request; every error, the router's own included, carries a google.rpc.Status.

Source:
    OTLP 1.11: paths, status codes, Status bodies, Retry-After. Where it is silent the Collector decides: 415 for an
    unknown media type, 400 for an unknown encoding, 405 for a wrong method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import ClientError, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from google.rpc.code_pb2 import Code

from rootwalk.otel_receiver.addresses import ACCEPTS_AT_ONCE, BACKLOG, ListenAddress, bind
from rootwalk.otel_receiver.answers import (
    RETRY_AFTER_S,
    MediaType,
    Outcome,
    Result,
    render_message,
    render_status,
)
from rootwalk.otel_receiver.content_encoding import ENCODINGS
from rootwalk.otel_receiver.first_headers import FirstHeaders
from rootwalk.otel_receiver.ingest import Ingest, IngestRefusal
from rootwalk.otel_receiver.memory_gate import (
    REQUEST_OVERHEAD_BYTES,
    Reservation,
    next_reservation,
)
from rootwalk.otel_receiver.quiet_log import limited_logger
from rootwalk.otel_receiver.request_checks import build_export_response
from rootwalk.otel_receiver.server_options import ServerOptions
from rootwalk.otel_receiver.signals import Signal

__all__ = ["HTTP_PATHS", "HttpServer", "TextServer"]

HTTP_PATHS: Final = {
    Signal.TRACES: "/v1/traces",
    Signal.METRICS: "/v1/metrics",
    Signal.LOGS: "/v1/logs",
    Signal.PROFILES: "/v1development/profiles",
}
TRANSPORT: Final = "http"
# Time that requests in progress have to end when the server stops.
GRACE_S: Final = 5.0
_MEDIA_TYPES: Final = {
    "application/x-protobuf": MediaType.PROTOBUF,
    "application/protobuf": MediaType.PROTOBUF,
    "application/json": MediaType.JSON,
}
# How long the rest of a refused body is read, so that its sender sees the answer and not a reset.
LINGERING_S: Final = 2.0
# How long a browser may remember what it may send.
_CORS_MAX_AGE_S: Final = 7200

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """OTLP/HTTP; `start` once, then `stop` once or more."""

    def __init__(self, ingest: Ingest, address: ListenAddress, options: ServerOptions) -> None:
        self._ingest = ingest
        self._address = address
        self._options = options
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._first_headers: FirstHeaders | None = None

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on, or the certificates cannot be used.
        """
        tls = self._options.tls
        ssl_context = None if tls is None else tls.server_context()
        application = web.Application(middlewares=[self._answer_errors])
        for signal, path in HTTP_PATHS.items():
            application.router.add_post(path, self._export_route(signal), expect_handler=_expect)
            if self._options.cors_origins:
                application.router.add_options(path, _preflight)
        if self._options.cors_origins:
            application.on_response_prepare.append(self._allow_origin)
        for path in ("/", "/health"):
            application.router.add_get(path, _health)
        bound = bind(self._address, "--http")
        port = bound.getsockname()[1]
        # Bodies are decompressed by `Ingest`, with a limit, and not by aiohttp.
        runner = web.AppRunner(
            application,
            auto_decompress=False,
            access_log=None,
            # A peer decides how often aiohttp has something to say.
            logger=limited_logger(f"{__name__}.peers"),
            keepalive_timeout=self._options.keepalive_s,
            lingering_time=LINGERING_S,
            shutdown_timeout=GRACE_S,
        )
        await runner.setup()
        self._runner = runner
        self._first_headers = FirstHeaders(
            runner, self._options.read_timeout_s, self._options.connections
        )
        self._server = await asyncio.get_running_loop().create_server(
            self._first_headers, sock=bound, ssl=ssl_context, backlog=ACCEPTS_AT_ONCE
        )
        bound.listen(BACKLOG)
        return ListenAddress(self._address.host, port)

    async def stop(self) -> None:
        """Let requests in progress end, then close."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def _export_route(self, signal: Signal) -> _Handler:
        async def export(request: web.Request) -> web.Response:
            async def work(held: Reservation) -> Outcome:
                self._options.check_token(request.headers.get("Authorization"))
                self._ingest.check_backlog()
                return await self._accept(signal, request, held)

            outcome = await self._ingest.answer(signal, TRANSPORT, work)
            if outcome.result is not Result.DURABLE:
                return _refuse(request, outcome)
            if self._first_headers is not None:
                self._first_headers.prove(request.protocol)
            media_type = _media_type(request)
            answer = build_export_response(signal, outcome.rejected, outcome.message)
            return web.Response(
                body=render_message(answer, media_type), content_type=media_type.value
            )

        return export

    async def _accept(self, signal: Signal, request: web.Request, held: Reservation) -> Outcome:
        if request.content_type not in _MEDIA_TYPES:
            raise IngestRefusal(
                Result.UNKNOWN_MEDIA_TYPE,
                f'cannot read content type "{request.content_type[:80]}"; '
                f"needs {' or '.join(MediaType)}",
            )
        encoding = request.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
        if encoding not in ENCODINGS:
            raise IngestRefusal(
                Result.UNKNOWN_ENCODING,
                f'cannot read content encoding "{encoding[:80]}"; needs {", ".join(ENCODINGS)}',
            )
        raw = await self._read(request, held)
        is_json = _media_type(request) is MediaType.JSON
        return await self._ingest.accept(signal, raw, held, encoding=encoding, is_json=is_json)

    async def _read(self, request: web.Request, held: Reservation) -> bytes | bytearray:
        """Return the body as it was sent; memory for it is reserved as it arrives, not as it is announced."""
        announced_bytes = request.content_length or 0
        self._ingest.check_size(announced_bytes)
        await self._ingest.reserve(held, REQUEST_OVERHEAD_BYTES)
        body = bytearray()
        try:
            async with asyncio.timeout(self._options.read_timeout_s):
                while part := await request.content.readany():
                    if len(part) == announced_bytes:
                        return part
                    body += part
                    self._ingest.check_size(len(body))
                    wanted_bytes = next_reservation(len(body), max(announced_bytes, len(body)))
                    await self._ingest.reserve(held, wanted_bytes + REQUEST_OVERHEAD_BYTES)
        except TimeoutError:
            raise IngestRefusal(
                Result.SLOW_SENDER,
                f"cannot accept the request: its body took longer than {self._options.read_timeout_s:g} s; "
                "send again later",
            ) from None
        except (ClientError, ConnectionError, HttpProcessingError) as error:
            raise IngestRefusal(
                Result.MALFORMED,
                f"cannot read the body: saw its end after {len(body)} bytes; needs all of it",
            ) from error
        return body

    async def _allow_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("Origin")
        if origin is None or request.path not in HTTP_PATHS.values():
            return
        if {origin, "*"} & set(self._options.cors_origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Give the router's own refusals the same body as ours."""
        if self._first_headers is not None:
            self._first_headers.arrived(request.protocol)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            self._ingest.counters.count_lost_request("unknown_path")
            paths = " or ".join(HTTP_PATHS.values())
            saw = f'cannot find the path "{request.path[:80]}"; needs {paths}'
            return _error(request, 404, Code.UNIMPLEMENTED, saw)
        except web.HTTPMethodNotAllowed as error:
            self._ingest.counters.count_lost_request("wrong_method")
            allowed = ", ".join(sorted(error.allowed_methods))
            saw = f"cannot {request.method[:20]} here; needs {allowed}"
            response = _error(request, 405, Code.UNIMPLEMENTED, saw)
            response.headers["Allow"] = allowed
            return response
        finally:
            if self._first_headers is not None:
                self._first_headers.answered(request.protocol)


class TextServer:
    """One page of text at one path, for scrapers; `start` once, then `stop` once or more."""

    def __init__(
        self,
        address: ListenAddress,
        option: str,
        path: str,
        content_type: str,
        render: Callable[[], str],
    ) -> None:
        self._address = address
        self._option = option
        self._path = path
        self._headers = {"Content-Type": content_type}
        self._render = render
        self._runner: web.AppRunner | None = None

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on.
        """

        async def show(_request: web.Request) -> web.Response:
            return web.Response(text=self._render(), headers=self._headers)

        application = web.Application()
        application.router.add_get(self._path, show)
        bound = bind(self._address, self._option)
        port = bound.getsockname()[1]
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.SockSite(runner, bound).start()
        self._runner = runner
        return ListenAddress(self._address.host, port)

    async def stop(self) -> None:
        """Close."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _preflight(request: web.Request) -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": str(_CORS_MAX_AGE_S),
    }
    return web.Response(status=204, headers=headers)


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Answer an Expect header; aiohttp's own answer to an unknown one is plain text."""
    if request.version != HttpVersion11:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # A body that follows is another message's output.
        request.writer.output_size = 0
        return None
    return _error(request, 417, Code.INVALID_ARGUMENT, "cannot meet the Expect header; needs none")


def _media_type(request: web.Request) -> MediaType:
    return _MEDIA_TYPES.get(request.content_type, MediaType.PROTOBUF)


def _refuse(request: web.Request, outcome: Outcome) -> web.Response:
    result = outcome.result
    response = _error(request, result.http_status, result.code, outcome.message or "")
    if result.is_retryable:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if result is Result.UNAUTHENTICATED:
        response.headers["WWW-Authenticate"] = "Bearer"
    if result is Result.SLOW_SENDER:
        response.force_close()
    return response


def _error(request: web.Request, http_status: int, code: int, message: str) -> web.Response:
    media_type = _media_type(request)
    body = render_status(code, message, media_type)
    return web.Response(body=body, status=http_status, content_type=media_type.value)

"""The forms that answers have over HTTP: JSON, HTML, and the one form of every error."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rootwalk.graph.serve import answers
from rootwalk.graph.serve.static_files import StaticFile
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

__all__ = [
    "Handler",
    "answer_errors",
    "html_response",
    "json_response",
    "read_number",
    "refuse",
    "static_response",
]

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error one form; a sentence for what we know, "internal" for what we do not."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        words = {404: "not_found", 405: "wrong_method", 413: "too_large"}
        return refuse(
            error.status,
            words.get(error.status, "refused"),
            f"cannot answer {request.method} {request.path}: {error.reason.lower()}",
            "/api/v1 lists what can be asked",
        )
    except ConfigError as error:
        return refuse(400, "bad_request", str(error), error.hint)
    except RootwalkError as error:
        return refuse(503, "store", str(error), error.hint)
    except Exception:  # outermost frame of a request
        logger.exception("a request for %s failed", request.path)
        return refuse(
            500, "internal", "cannot answer: saw an error of Rootwalk's own; its log says more"
        )


def read_number(request: web.Request, name: str, default: int | None = None) -> int:
    """Return a number of the question; a ConfigError says what was asked instead."""
    text = request.query.get(name, "" if default is None else str(default))
    # Numbers of ranks and steps fit into 63 bits.
    if (
        not text.removeprefix("-").isascii()
        or not text.removeprefix("-").isdigit()
        or len(text) > 18
    ):
        raise ConfigError(
            f'cannot answer: saw {name}="{text[:40]}"; needs a number', hint=f"{name}=0"
        )
    return int(text)


def json_response(value: dict[str, Any], status: int = 200) -> web.Response:
    """Return an object as JSON."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def html_response(text: str, status: int = 200) -> web.Response:
    """Return HTML that one of the templates has made."""
    return web.Response(text=text, status=status, content_type="text/html")


def static_response(file: StaticFile, accepted: str) -> web.Response:
    """Return a file, compressed for who accepts that; the policy of the page lets in what comes from here only."""
    headers = {"Vary": "Accept-Encoding"}
    is_zipped = "gzip" in accepted.lower()
    if is_zipped:
        headers["Content-Encoding"] = "gzip"
    if file.cache is not None:
        headers["Cache-Control"] = file.cache
    body = file.zipped if is_zipped else file.content
    charset = None if file.media_type.startswith("image/") else "utf-8"
    return web.Response(body=body, content_type=file.media_type, charset=charset, headers=headers)


def refuse(status: int, code: str, message: str, hint: str | None = None) -> web.Response:
    """Return an error in the one form that errors have."""
    return json_response(answers.error_answer(code, message, hint), status)

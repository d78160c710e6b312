"""The live page's server on a free port of this machine, in a thread, and questions to it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rootwalk.graph.serve.server import PageServer, ServeConfig
from rootwalk.otel_receiver.addresses import ListenAddress

THREADS = 4


class Answer:
    """One answer: status, headers and body."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        is_zipped = headers.get("Content-Encoding") == "gzip"
        self.text = (gzip.decompress(body) if is_zipped else body).decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


class Served:
    """A server at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> Answer:
        """Ask for a path; redirections are followed."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(  # noqa: S310  (our own server)
            self.url + path.lstrip("/"), data=data, headers=named
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


@contextlib.contextmanager
def serving(store: Path, **options: Any) -> Iterator[Served]:
    """Serve a store until the block ends."""
    ready = threading.Event()
    address: list[ListenAddress] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        # All threads begin here: a fixture of many tests leaves none in the first of them.
        executor = ThreadPoolExecutor(THREADS)
        asyncio.get_running_loop().set_default_executor(executor)
        together = threading.Barrier(THREADS)
        for work in [executor.submit(together.wait) for _ in range(THREADS)]:
            work.result()
        server = PageServer(ServeConfig(store, ListenAddress("127.0.0.1", 0), **options))
        address.append(await server.start())
        ended = asyncio.Event()
        loops.append((asyncio.get_running_loop(), ended))
        ready.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30), "the server listens"
        yield Served(f"http://{address[0]}/")
    finally:
        if loops:
            loop, ended = loops[0]
            loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        assert not thread.is_alive()

"""The page and its API over HTTP: routes, who may ask, and the one form of every error.

Reads only; each question opens the store for itself, in a thread, and gives the receiver its turn. Errors carry a
sentence, and nothing that was asked for is put into HTML but by a template that escapes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.graph.live.store import stamp_of
from rootwalk.graph.report.reading import told_query
from rootwalk.graph.serve import answers, view
from rootwalk.graph.serve.admission import SECURITY_HEADERS, Sessions, allowed_host
from rootwalk.graph.serve.http_answers import (
    Handler,
    answer_errors,
    html_response,
    json_response,
    read_number,
    refuse,
    static_response,
)
from rootwalk.graph.serve.rank_step import read_rank_step
from rootwalk.graph.serve.reading import Pulse, read_jobs, read_pulse
from rootwalk.graph.serve.route import build_route
from rootwalk.graph.serve.route_reading import WINDOW_S, read_route
from rootwalk.graph.serve.snapshots import Problem, Snapshot, Snapshots
from rootwalk.graph.serve.static_files import read_static
from rootwalk.graph.verdict import to_json
from rootwalk.instrumentation.errors import RootwalkError, StoreError
from rootwalk.instrumentation.export import product_version
from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.access import BearerTokens
from rootwalk.otel_receiver.addresses import BACKLOG, ListenAddress, bind

__all__ = ["PageServer", "ServeConfig"]

COOKIE: Final = "rootwalk_session"
# How long a look at the store waits for its turn: the page, which shows what it has, asks again for how a job does;
# people ask once, and the first look has nothing to show.
LOOK_TURN_S: Final = 5.0
TURN_S: Final = 30.0
# What was read last is shown for so long while the store is in use.
STALE_S: Final = 60.0
MAX_SEEN: Final = 64
PAUSE_S: Final = 1.0
# Guesses at a token are answered late.
WRONG_TOKEN_PAUSE_S: Final = 0.5
MAX_LOGIN_BYTES: Final = 4096
_STALLS: Final = (
    "SELECT thread_id, role, state, duration_ns, aggressor_name, wait_kind FROM stalls WHERE job = ?"
    " AND coalesce(attempt, 0) = ? AND rank = ? AND step = ? ORDER BY duration_ns DESC"
)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What to serve, where, and to whom.

    Attributes:
        store: The store's file.
        address: Where to listen.
        names: Names that a browser may call this page by, beside numeric addresses and `localhost`.
        token_file: Who may ask; None for everybody who reaches the address.
    """

    store: Path
    address: ListenAddress
    names: tuple[str, ...] = ()
    token_file: Path | None = None


class PageServer:
    """The page of one store; `start` once, then `stop` once or more."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._sessions = (
            None if config.token_file is None else Sessions(BearerTokens(config.token_file))
        )
        self._snapshots = Snapshots(config.store, view.render_job)
        self._seen: dict[object, tuple[float, tuple[int, ...] | None, Any]] = {}
        self._runner: web.AppRunner | None = None
        self._maker: asyncio.Task[None] | None = None
        self._shell = view.render_shell(product_version())

    async def start(self) -> ListenAddress:
        """Listen and return the real address.

        Raises:
            ConfigError: If the address cannot be listened on.
        """
        application = web.Application(
            middlewares=[self._guard, answer_errors], client_max_size=MAX_LOGIN_BYTES
        )
        routes: dict[str, Handler] = {
            "/": self._page,
            "/static/{path:.+}": self._static,
            "/api/v1": self._index,
            "/api/v1/jobs": self._jobs,
            "/api/v1/live": self._live,
            "/api/v1/verdict": self._verdict,
            "/api/v1/heat-map": self._heat_map,
            "/api/v1/steps": self._steps,
            "/api/v1/graph": self._graph,
            "/api/v1/rank-step": self._rank_step,
            "/api/v1/route": self._route,
            "/view/job": self._view_job,
            "/view/rank-step": self._view_rank_step,
            "/view/route": self._view_route,
        }
        for path, handler in routes.items():
            application.router.add_get(path, handler)
        if self._sessions is not None:
            application.router.add_post("/login", self._login)
        bound = bind(self._config.address, "--address")
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, bound, backlog=BACKLOG).start()
        self._maker = asyncio.create_task(self._make_answers())
        return ListenAddress(self._config.address.host, bound.getsockname()[1])

    async def stop(self) -> None:
        """Stop answering."""
        if self._maker is not None:
            self._maker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._maker
            self._maker = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _make_answers(self) -> None:
        """Diagnose again what somebody looks at, as long as the server runs."""
        while True:
            job = self._snapshots.due()
            if job is not None:
                await asyncio.to_thread(self._snapshots.make, job)
            await asyncio.sleep(PAUSE_S)

    # Who may ask

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._admit(request, handler)
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not allowed_host(request.headers.get("Host"), self._config.names):
            return refuse(
                421,
                "wrong_host",
                "cannot answer: saw a Host header that is not this server's; needs its address, localhost or a"
                " name given at the start",
                "rootwalk serve --name NAME allows for another name",
            )
        is_page = request.path in ("/", "/login") or request.path.startswith("/static/")
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not is_page:
            return refuse(403, "cross_site", "cannot answer: saw a request of another site's page")
        if self._sessions is None or request.path == "/login" or (is_page and request.path != "/"):
            return await handler(request)
        if self._sessions.admits(request.headers.get("Authorization"), request.cookies.get(COOKIE)):
            return await handler(request)
        if request.path == "/":
            return html_response(view.render_login(has_failed=False), status=401)
        refusal = refuse(
            401,
            "no_token",
            "cannot answer: saw no valid token; needs one of those that the server was given",
            "send the header Authorization: Bearer TOKEN, or open the page and type it there",
        )
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if self._sessions is None:
            raise web.HTTPNotFound
        form = await request.post()
        session = self._sessions.begin(str(form.get("token", "")).strip())
        if session is None:
            await asyncio.sleep(WRONG_TOKEN_PAUSE_S)
            return html_response(view.render_login(has_failed=True), status=401)
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(COOKIE, session, httponly=True, samesite="Strict", path="/")
        return response

    # The page

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return html_response(self._shell)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        found = read_static(request.match_info["path"])
        if found is None:
            raise web.HTTPNotFound
        return static_response(found, request.headers.get("Accept-Encoding", ""))

    async def _view_job(self, request: web.Request) -> web.StreamResponse:
        snapshot = await self._answer(request)
        response = html_response(snapshot.html)
        response.headers["Rootwalk-View"] = str(snapshot.number)
        return response

    async def _view_rank_step(self, request: web.Request) -> web.StreamResponse:
        first, last = read_number(request, "rank"), read_number(request, "last_rank", -1)
        number = read_number(request, "step")
        key, _ = await self._pulse(request)
        rank = first if last <= first else await self._latest_rank(request, (first, last), number)
        found = await self._ask(lambda c: read_rank_step(c, key, rank, number))
        snapshot, _ = self._snapshots.want(key.job, None)
        clock = snapshot.report.clock if snapshot is not None else None
        span = (clock.numbers[0], clock.numbers[-1]) if clock is not None else None
        query = told_query(_STALLS, key.job, key.attempt, rank, number)
        return html_response(view.render_rank_step(found, rank, number, span, query))

    async def _latest_rank(self, request: web.Request, span: tuple[int, int], number: int) -> int:
        """Return which of the ranks of one row of the map was latest in a step."""
        report = (await self._answer(request)).report
        if report.clock is None or report.lateness_s is None or number not in report.clock.numbers:
            return span[0]
        column = report.clock.numbers.index(number)
        rows = [i for i, row in enumerate(report.ranks) if span[0] <= row.rank <= span[1]]
        late = [(float(report.lateness_s[i, column]), -report.ranks[i].rank) for i in rows]
        known = [item for item in late if item[0] == item[0]]
        return -max(known)[1] if known else span[0]

    async def _view_route(self, request: web.Request) -> web.StreamResponse:
        ends = (read_number(request, "from"), read_number(request, "to"))
        return html_response(
            view.render_route(await self._hops(request, ends) or (), ends, WINDOW_S)
        )

    # The API

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return json_response({"schema": "rootwalk.api/1", "routes": answers.INDEX})

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        return json_response(answers.jobs_answer(await self._look("jobs", read_jobs)))

    async def _live(self, request: web.Request) -> web.StreamResponse:
        key, pulse = await self._pulse(request)
        mark = tuple((f.id, f.closed_unix_ns) for f in pulse.findings)
        snapshot, problem = self._snapshots.want(key.job, mark)
        return json_response(answers.live_answer(self._config.store, key, pulse, snapshot, problem))

    async def _verdict(self, request: web.Request) -> web.StreamResponse:
        snapshot = await self._answer(request)
        return web.Response(text=to_json(snapshot.report.verdict), content_type="application/json")

    async def _heat_map(self, request: web.Request) -> web.StreamResponse:
        return json_response(answers.heat_map_answer((await self._answer(request)).report))

    async def _graph(self, request: web.Request) -> web.StreamResponse:
        return json_response(answers.graph_answer((await self._answer(request)).report))

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        return json_response(answers.steps_answer((await self._answer(request)).report))

    async def _rank_step(self, request: web.Request) -> web.StreamResponse:
        key, _ = await self._pulse(request)
        rank, step = read_number(request, "rank"), read_number(request, "step")
        found = await self._ask(lambda c: read_rank_step(c, key, rank, step))
        if found is None:
            return refuse(
                404,
                "not_found",
                f"cannot show rank {rank} in step {step}: saw no complete step of that number in the store",
            )
        return json_response({"schema": "rootwalk.rank-step/1"} | asdict(found))

    async def _route(self, request: web.Request) -> web.StreamResponse:
        ends = (read_number(request, "from"), read_number(request, "to"))
        hops = await self._hops(request, ends)
        if hops is None:
            return refuse(
                404,
                "not_found",
                f"cannot find ranks {ends[0]} and {ends[1]}: not both are in the job",
            )
        return json_response(answers.route_answer(hops, WINDOW_S))

    # What they share

    async def _hops(self, request: web.Request, ends: tuple[int, int]) -> Any:
        key, _ = await self._pulse(request)
        read = await self._ask(lambda c: read_route(c, key, ends))
        if read is None:
            return None
        snapshot, _ = self._snapshots.want(key.job, None)
        findings = snapshot.report.verdict.findings if snapshot is not None else ()
        named = [(f.id, frozenset(f.subject.ranks), f.subject.node) for f in findings]
        return build_route(read[0], read[1], read[2], named)

    async def _pulse(self, request: web.Request) -> tuple[JobKey, Pulse]:
        """Return the job that a request is about and how it does now; as last seen while the store is in use.

        Raises:
            web.HTTPNotFound: If there is no such job, or none at all.
        """
        job = request.query.get("job")

        def read(connection: Any) -> tuple[JobKey, Pulse] | None:
            key = choose_job(connection, job)
            return None if key is None else (key, read_pulse(connection, key))

        found: tuple[JobKey, Pulse] | None = await self._look(("pulse", job), read)
        if found is None:
            raise web.HTTPNotFound(reason="the store has no job yet")
        return found

    async def _answer(self, request: web.Request) -> Snapshot:
        key, _ = await self._pulse(request)
        snapshot, problem = await asyncio.to_thread(self._snapshots.answer, key.job)
        if snapshot is None:
            told = problem or Problem("cannot diagnose: saw no answer", None)
            raise RootwalkError(told.message, hint=told.hint)
        return snapshot

    async def _look(self, name: object, read: Callable[[Any], Any]) -> Any:
        """Return what a function reads: what it read last while nothing is new, or somebody else holds the store."""
        stamp = stamp_of(self._config.store)
        seen_s, known_stamp, known = self._seen.get(name, (float("-inf"), None, None))
        if known_stamp == stamp:
            return known
        try:
            found = await self._ask(read, TURN_S if known is None else LOOK_TURN_S)
        except StoreError:
            if time.monotonic() - seen_s > STALE_S:
                raise
            return known
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen[name] = (time.monotonic(), stamp, found)
        return found

    async def _ask(self, read: Callable[[Any], Any], timeout_s: float = TURN_S) -> Any:
        """Return what a function reads from the store, in a thread."""

        def run() -> Any:
            with store.reading(self._config.store, timeout_s=timeout_s) as connection:
                return read(connection)

        return await asyncio.to_thread(run)

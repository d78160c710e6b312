"""What ranks' threads ran and waited in, as OTLP profiles: POST /v1development/profiles, a Resource for each rank.

    samples of 5 s ──▶ by rank, kind and rate ──▶ Profile ──▶ one request ──▶ the same again until it is acknowledged
      ╰─ up to 20 s, and fewer samples, where requests grow too large ◀── its size, compressed ─────────╯

Off unless it is asked for, from the start or by `rootwalk level`: nothing of it is even imported till then.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.export import OtlpSender, product_version
from rootwalk.instrumentation.redact import redact_thread_name

if TYPE_CHECKING:
    from rootwalk.ebpf.readers import Readers
    from rootwalk.ebpf.stacks.reader import StackSample
    from rootwalk.ebpf.stacks.sensor import StackReader
    from rootwalk.ebpf.stacks.wire import WirePace
    from rootwalk.instrumentation.identity import Identity
    from rootwalk.instrumentation.profiles import Profile, Sample, ValueKind

__all__ = ["AgentProfiles", "build_profiles"]

logger = logging.getLogger(__name__)

SCOPE = "rootwalk.ebpf"
SECOND_NS = 1_000_000_000
# Kinds of profiles, in the order in which a rank's are sent.
ON_CPU, OFF_CPU, COLLECTIVE_WAIT = "on_cpu", "off_cpu", "collective_wait"


class Rank(Protocol):
    """What is needed of a rank that is watched."""

    @property
    def identity(self) -> Identity:
        """Who it is."""
        ...

    def context_of(self, mono_ns: int) -> tuple[bytes, bytes] | None:
        """Return trace and span id of the step that a moment falls in."""
        ...

    def phase_of(self, mono_ns: int) -> str | None:
        """Return the phase that a moment falls in."""
        ...

    def collective_of(self, mono_ns: int) -> str | None:
        """Return the operation of a collective that was under way at a moment."""
        ...


FindRank = Callable[[int], Rank | None]


class AgentProfiles:
    """Owns the reader of stacks while stacks are asked for, and the samples that are to be sent.

    Args:
        endpoint: OTLP/HTTP base URL.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._sender: OtlpSender | None = None
        self._pace: WirePace | None = None
        self._reader: StackReader | None = None
        self._readers: Readers | None = None
        self._is_refused = self._is_ending = False
        self._ended_losses: Counter[str] = Counter()
        self._next_s = 0.0
        self._since_mono_ns = time.monotonic_ns()
        self._waiting, self._waiting_samples, self._waiting_ranks = b"", 0, 0
        self._waiting_s = 0.0
        self._rankless = 0

    def choose(
        self, hz: int, readers: Readers, ranks: Mapping[int, tuple[int, Iterable[int]]]
    ) -> None:
        """Open or close the reader as it is asked for now.

        Args:
            hz: Samples a second and CPU, the highest rate of any rank; 0 for no stacks.
            readers: Whose reader it is.
            ranks: By slot, the rate of each rank and its processes.
        """
        self._is_ending = not hz
        if not hz:
            if self._reader is not None:  # until it is closed, for what was taken waits to be sent
                self._reader.choose(self._reader.hz, frozenset(ranks))
            return
        left_out = frozenset(slot for slot, (rate, _) in ranks.items() if not rate)
        if self._reader is None:
            self._open(hz, readers, ranks, left_out)
        if self._reader is not None:
            self._reader.choose(hz, left_out)

    def send(self, find_rank: FindRank, rung: int, *, is_due: bool) -> bool:
        """Send what is due.

        Args:
            find_rank: Returns the rank of a slot; None for one that is not watched any more.
            rung: How many steps of detail were given up for the budget.
            is_due: Send now what there is: a rank's last steps will not be known any more.

        Returns:
            Whether nothing is left that was tried to send.
        """
        if self._sender is None or self._pace is None or self._sender.is_backing_off:
            return not self._waiting
        now_s = time.monotonic()
        is_due = is_due or self._is_ending or now_s >= self._next_s
        if self._reader is not None and not self._waiting and (is_due or self._reader.is_filling):
            self._build(self._reader, find_rank)
            self._reader.lower(rung + self._pace.halvings)
            self._next_s = now_s + self._pace.interval_s
            if self._is_ending:
                self._close_reader(self._reader)
        if self._waiting:
            self._post(self._sender, self._pace)
        return not self._waiting

    def _post(self, sender: OtlpSender, pace: WirePace) -> None:
        """Send what waits; note how much it took."""
        before = sender.sent_bytes
        if sender.post(self._waiting, self._waiting_samples):
            pace.note(sender.sent_bytes - before, self._waiting_s, self._waiting_ranks)
            self._waiting = b""

    def losses(self) -> Mapping[str, int]:
        """Return what was lost since the start, by `rootwalk.drop.reason`."""
        if self._sender is None:
            return {}
        own = {"stacks_rank_gone": self._rankless, "stacks_refused": self._sender.refused_records}
        return {**self._ended_losses, **own}

    def close(self) -> None:
        """Close the connection; what still waits is lost."""
        if self._sender is not None:
            self._sender.close()

    def _open(
        self,
        hz: int,
        readers: Readers,
        ranks: Mapping[int, tuple[int, Iterable[int]]],
        left_out: frozenset[int],
    ) -> None:
        """Open the reader and tell it what is watched; say once why it cannot be had."""
        if self._is_refused:
            return
        from rootwalk.ebpf.stacks.sensor import StackReader
        from rootwalk.ebpf.stacks.wire import WirePace

        try:
            reader = readers.open_more(lambda place: StackReader(place, hz, left_out))
        except UnavailableError as error:
            self._is_refused = True
            logger.error("no profiles: %s", error)  # noqa: TRY400  (a sentence, no traceback)
            return
        for slot, (_, pids) in ranks.items():
            for pid in pids:
                reader.watch(pid, slot)
        self._reader, self._readers = reader, readers
        self._sender = self._sender or OtlpSender(self._endpoint, "profiles")
        self._pace = self._pace or WirePace()
        self._since_mono_ns = time.monotonic_ns()
        self._next_s = time.monotonic() + self._pace.interval_s

    def _close_reader(self, reader: StackReader) -> None:
        """Let go of the reader, whose samples were taken; what it lost stays counted."""
        self._ended_losses.update(reader.losses())
        if self._readers is not None:
            self._readers.close_one(reader)
        self._reader = None

    def _build(self, reader: StackReader, find_rank: FindRank) -> None:
        from rootwalk.instrumentation.profiles import build_request

        samples, until_ns = reader.take(), time.monotonic_ns()
        known: dict[int, Rank] = {}
        for slot in {sample.slot for sample in samples}:
            rank = find_rank(slot)
            if rank is not None:
                known[slot] = rank
        self._rankless += sum(sample.number for sample in samples if sample.slot not in known)
        profiles = build_profiles(
            samples, known, (self._since_mono_ns, until_ns), SECOND_NS // reader.rate_hz
        )
        self._waiting_s = (until_ns - self._since_mono_ns) / SECOND_NS
        self._since_mono_ns, self._waiting_ranks = until_ns, len(known)
        self._waiting = build_request(profiles, SCOPE, product_version())
        self._waiting_samples = sum(len(profile.samples) for profile in profiles)


def build_profiles(
    samples: Iterable[StackSample],
    ranks: Mapping[int, Rank],
    bounds_mono_ns: tuple[int, int],
    period_ns: int,
) -> list[Profile]:
    """Return the profiles of some seconds: of each rank what ran, what waited, and what of it was in collectives.

    Args:
        samples: In any order.
        ranks: Ranks by slot; samples of others are left out.
        bounds_mono_ns: When the time began and ended (CLOCK_MONOTONIC).
        period_ns: Time between two samples of a CPU.
    """
    from rootwalk.instrumentation.profiles import Profile

    by_rank: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.slot in ranks:
            for kind, made in _samples(sample, ranks[sample.slot]):
                by_rank[sample.slot, kind].append(made)
    start_unix_ns = read_host_clock().unix_ns(bounds_mono_ns[0])
    kinds = _kinds(period_ns)
    return [
        Profile(
            ranks[slot].identity.resource_attributes(),
            start_unix_ns,
            bounds_mono_ns[1] - bounds_mono_ns[0],
            kinds[kind][0],
            by_rank[slot, kind],
            *kinds[kind][1:],
        )
        for slot in sorted(ranks)
        for kind in kinds
        if (slot, kind) in by_rank
    ]


def _kinds(period_ns: int) -> dict[str, tuple[ValueKind, ValueKind | None, int]]:
    """Return what the values of each kind of profile count, and what lies between two of them."""
    from rootwalk.instrumentation.profiles import ValueKind

    waited = ValueKind(COLLECTIVE_WAIT, "nanoseconds")
    return {
        ON_CPU: (ValueKind("samples", "count"), ValueKind("cpu", "nanoseconds"), period_ns),
        OFF_CPU: (ValueKind("off_cpu", "nanoseconds"), None, 0),
        # Pyroscope names a profile that it does not know by its period.
        COLLECTIVE_WAIT: (waited, waited, 1),
    }


def _samples(sample: StackSample, rank: Rank) -> Iterator[tuple[str, Sample]]:
    """Yield what a sample is in each kind of profile.

    A training thread that blocks while a collective is under way waits in it, as backends do that end on the host; one
    that waits for a device while the collective runs there does as well.
    """
    from rootwalk.ebpf.stacks.records import StackFlag, StackKind
    from rootwalk.instrumentation.profiles import Sample

    role = semconv.TrainingThreadRole.OTHER
    if sample.flags & StackFlag.CHILD:
        role = semconv.TrainingThreadRole.LOADER_WORKER
    elif sample.flags & StackFlag.FIRST_THREAD:
        role = semconv.TrainingThreadRole.MAIN
    attributes: dict[str, str | bool | int] = {semconv.TRAINING_THREAD_ROLE: role.value}
    # A thread that waits changes no phase: the middle tells it, and not the slice of time that the wait began in.
    mono_ns = sample.mono_ns + sample.time_ns // (2 * max(sample.number, 1))
    phase = rank.phase_of(mono_ns)
    if phase is not None:
        attributes[semconv.TRAINING_PHASE] = phase
    context = rank.context_of(mono_ns)
    if sample.kind is StackKind.ON_CPU:
        yield ON_CPU, Sample(sample.frames, sample.number, attributes, context)
        return
    if sample.waker is not None:
        attributes[semconv.TRAINING_WAKER_PID] = sample.waker.pid
        attributes[semconv.TRAINING_WAKER_THREAD_ID] = sample.waker.tid
        attributes[semconv.TRAINING_WAKER_NAME] = redact_thread_name(sample.waker.name)
    yield OFF_CPU, Sample(sample.frames, sample.time_ns, attributes, context)
    is_main = role is semconv.TrainingThreadRole.MAIN
    operation = rank.collective_of(mono_ns) if is_main else None
    if operation is not None:
        told = attributes | {semconv.COLLECTIVE_OPERATION: operation}
        yield COLLECTIVE_WAIT, Sample(sample.frames, sample.time_ns, told, context)

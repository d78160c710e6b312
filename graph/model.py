"""What the analysis talks about: node and edge kinds, evidence, findings and the verdict.

Plain frozen data without behaviour beyond conversion; knows nothing of the store, of arrays or of text. The fields of
`Verdict` and everything inside it are the public contract (`verdict-1.schema.json`): their order is the order in JSON.
All times are seconds as floats unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SCHEMA_NAME: Final = "rootwalk.verdict/1"

# What the store keeps as JSON beside a node, an edge or a row of evidence.
Attributes = dict[str, str | int | float | bool | None]


class Outcome(StrEnum):
    """What the verdict says as a whole."""

    FINDING = "finding"
    HEALTHY = "healthy"
    INSUFFICIENT_EVIDENCE = "insufficient_evidence"


class Band(StrEnum):
    """Confidence in words."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class EdgeKind(StrEnum):
    """Kinds of edges of the dependency graph."""

    SLOWED_BY = "slowed_by"
    WAITS_FOR = "waits_for"
    RUNNABLE = "runnable"
    RUNNING = "running"
    BLOCKED = "blocked"
    CONTENDS_WITH = "contends_with"
    THROTTLED_BY = "throttled_by"
    TRANSFERS_OVER = "transfers_over"
    RUNS_ON = "runs_on"
    MEMBER_OF = "member_of"
    ENDED_BY = "ended_by"


class QualityCode(StrEnum):
    """What can be wrong with the data (contract section 2)."""

    CLOCK_UNALIGNED = "CLOCK_UNALIGNED"
    DROPPED = "DROPPED"
    DUPLICATE_RANK = "DUPLICATE_RANK"
    RANK_MISSING = "RANK_MISSING"
    UNEQUAL_MEMBERS = "UNEQUAL_MEMBERS"
    REPLAY_ERROR = "REPLAY_ERROR"
    SUM_MISMATCH = "SUM_MISMATCH"
    MISSING_EDGE = "MISSING_EDGE"
    MIXED_VERSIONS = "MIXED_VERSIONS"
    BAD_TIME = "BAD_TIME"
    BROKEN_FILE = "BROKEN_FILE"
    RANKS_CHOSEN = "RANKS_CHOSEN"
    EVIDENCE_DISAGREES = "EVIDENCE_DISAGREES"
    NO_PROGRESS = "NO_PROGRESS"
    JOB_FAILED = "JOB_FAILED"
    RANKS_ASSUMED = "RANKS_ASSUMED"


@dataclass(frozen=True, slots=True)
class DataQuality:
    """One statement about the data; `count` is how many items it concerns, None if not countable."""

    code: str
    text: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Producer:
    """Version of the product and date of its rules."""

    version: str
    rules: str


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Which job; None where the store does not say."""

    id: str
    attempt: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that a verdict is about; all None when there were no steps."""

    start_unix_ns: int | None
    end_unix_ns: int | None
    first_step: int | None
    last_step: int | None
    slow_steps: tuple[int, ...] = ()
    exemplar_trace_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Means per step of the replay as recorded and with every operation at its reference."""

    simulated_step_s: float | None
    ideal_step_s: float | None
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class Aggressor:
    """The process that ran in a thread's place; None where nobody knows."""

    pid: int
    name: str
    cgroup: str | None
    container: str | None = None
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is to blame: a node of the dependency graph and where it sits."""

    node: str
    rank: int | None
    ranks: tuple[int, ...]
    host: str | None
    device: str | None
    stage: int | None
    communicator: str | None
    aggressor: Aggressor | None


@dataclass(frozen=True, slots=True)
class Onset:
    """Where a slowdown began."""

    step: int | None
    unix_ns: int | None


@dataclass(frozen=True, slots=True)
class Seconds:
    """Three numbers per step: fair share, gain from removing it alone, cost of it alone."""

    share: float | None
    remove: float | None
    add: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """What a finding has cost so far."""

    steps: int | None
    wall_s: float | None
    device_s: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure a finding is, 0 to 1, with the parts that lower it."""

    band: str
    score: float | None
    walk: float | None
    coverage: float | None


@dataclass(frozen=True, slots=True)
class FindingVictims:
    """How many ranks waited for the culprit, and the mean seconds per step of those that did."""

    count: int
    waited_s: float | None


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One edge on the way from the symptom to the culprit."""

    node: str
    edge: str
    seconds: float | None
    text: str


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """One measured value with what it is compared to, as the verdict shows it."""

    signal: str
    value: float | None
    unit: str
    peers: float | None
    history: float | None
    z: float | None
    trace_id: str | None
    span_id: str | None
    query: str | None


@dataclass(frozen=True, slots=True)
class Excluded:
    """A reason that looks alike and why it is not this one."""

    reason: str
    because: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its seconds, its chain and its evidence (contract section 2)."""

    id: str
    state: str
    kind: str | None
    method: str
    severity: str
    reason: str
    layer: str | None
    owner: str
    subject: Subject
    pattern: str | None
    onset: Onset | None
    detected_unix_ns: int | None
    named_unix_ns: int | None
    seconds: Seconds
    predicted_step_s: float | None
    lost: Lost
    confidence: Confidence
    victims: FindingVictims
    chain: tuple[ChainLink, ...]
    evidence: tuple[EvidenceView, ...]
    excluded: tuple[Excluded, ...]
    action_code: str
    action: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The ranks that waited for the first finding's culprit."""

    ranks: tuple[int, ...] = ()
    count: int = 0
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class MissingSensor:
    """A sensor that could not be read, and the reasons that it would have decided."""

    sensor: str
    reason: str
    hosts: tuple[str, ...]
    would_decide: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the diagnosis and the sensors cost; None where nobody measured."""

    diagnose_s: float | None = None
    peak_rss_bytes: int | None = None
    agent_cpu_ratio: float | None = None
    agent_rss_bytes: int | None = None
    bytes_per_rank_step: float | None = None
    events_per_rank_step: float | None = None
    bpf_s: Mapping[str, float] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    lowered_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks whose hosts issued their last call at the same place; frames innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HangRank:
    """What one rank does that holds up others: in one word, where in the user's program, and in words."""

    rank: int
    state: str
    where: str | None
    text: str


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Ranks that call the same at the same place of the program; `operation` is None where they have not called.

    `elements` is how many numbers each member gives, `place` the innermost frame outside PyTorch.
    """

    ranks: tuple[int, ...]
    operation: str | None
    elements: int | None
    data_type: str | None
    place: str | None


@dataclass(frozen=True, slots=True)
class HangView:
    """The operation that shows a hang best; `cycle` names the operations of a cyclic wait.

    `basis`, `ranks`, `idle_s` and `last_step` are known where ranks reported it live: what the verdict rests on, what
    those do that hold up others, for how long no rank made progress, and the last step before that.
    """

    communicator: str | None
    sequence: int | None
    operation: str | None
    joined: tuple[int, ...]
    absent: tuple[int, ...]
    cycle: tuple[str, ...]
    stack_groups: tuple[StackGroup, ...]
    since_unix_ns: int | None
    basis: str | None = None
    ranks: tuple[HangRank, ...] = ()
    idle_s: float | None = None
    last_step: int | None = None
    calls: tuple[CallGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class EndView:
    """How the job ended, and the rank that failed first.

    `kind` is a value of `ends.failure.EndKind`; `rank`, `exception`, `place` and `sender` are None where nothing says
    them. `exit_code` and `signal` are the rank's, else the command's. `last_step` is the last one that the rank, else
    any rank, completed. `ended_by` is command, user or signal; `text` is one line for people.
    """

    kind: str
    rank: int | None
    exit_code: int | None
    signal: str | None
    sender: str | None
    exception: str | None
    place: str | None
    last_step: int | None
    ended_by: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Known:
    """One number that is known where nobody can be named, a mean a step; `rank` is None for all ranks together."""

    signal: str
    value: float
    unit: str
    rank: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer (contract section 2)."""

    schema: str
    producer: Producer
    job: JobIdentity
    window: Window
    outcome: str
    kind: str | None
    syndrome: str | None
    step_s: float | None
    healthy_step_s: float | None
    healthy_from: str | None
    predicted_step_s: float | None
    what_if: WhatIf | None
    findings: tuple[Finding, ...]
    victims: Victims
    hang: HangView | None
    unexplained_s: float | None
    slack_s: float | None
    missing_sensors: tuple[MissingSensor, ...]
    data_quality: tuple[DataQuality, ...]
    end: EndView | None = None
    cost: Cost = field(default_factory=Cost)
    known: tuple[Known, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePayload:
    """Payload of a node of the dependency graph; `attributes` is what the store keeps as JSON."""

    kind: str
    label: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class EdgePayload:
    """Payload of an edge: mean seconds per step over the window and the evidence that it rests on."""

    kind: str
    seconds: float | None
    evidence_ids: tuple[str, ...]
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of the table `evidence`.

    `value`, `peers` and `history` are means or medians per step in `unit`; `z` is a robust score against
    history. `attributes` says which part it plays (`role`: magnitude, excluding or context).
    """

    id: str
    signal: str
    value: float | None
    unit: str
    peers: float | None
    history: float | None
    z: float | None
    trace_id: str | None
    span_id: str | None
    query: str | None
    attributes: Attributes

"""Who a finding is of and what it says, as OTLP names it: the same in events, spans and metrics."""

from __future__ import annotations

from rootwalk.graph.live.findings import LiveFinding
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import product_version
from rootwalk.instrumentation.log_events import Value

__all__ = ["SCOPE_NAME", "describe_culprit", "describe_finding", "describe_job"]

SERVICE_NAME = "rootwalk"
SCOPE_NAME = "rootwalk.graph"


def describe_job(job: str, attempt: int) -> dict[str, str | int]:
    """Return the Resource of what is said about a job."""
    return {
        semconv.SERVICE_NAME: SERVICE_NAME,
        semconv.SERVICE_VERSION: product_version(),
        semconv.TRAINING_JOB_ID: job,
        semconv.TRAINING_JOB_ATTEMPT: attempt,
    }


def describe_finding(finding: LiveFinding) -> dict[str, Value]:
    """Return the attributes of one finding; what is not known is left out."""
    values: dict[str, Value | None] = {
        semconv.ROOTWALK_FINDING_ID: finding.id,
        semconv.ROOTWALK_FINDING_CONFIDENCE: finding.confidence,
        semconv.ROOTWALK_FINDING_SHARE: finding.share_s,
        semconv.ROOTWALK_FINDING_FIRST_STEP: finding.first_step,
        semconv.ROOTWALK_FINDING_LAST_STEP: finding.last_step,
    }
    known = {key: value for key, value in values.items() if value is not None}
    return known | describe_culprit(finding)


def describe_culprit(finding: LiveFinding) -> dict[str, Value]:
    """Return those of them that many findings may share: what may be on metrics."""
    values: dict[str, Value | None] = {
        semconv.ROOTWALK_FINDING_REASON: finding.reason,
        semconv.ROOTWALK_FINDING_LAYER: finding.layer,
        semconv.ROOTWALK_FINDING_OWNER: finding.owner,
        semconv.TRAINING_RANK: finding.rank,
        semconv.HOST_NAME: finding.host,
    }
    return {key: value for key, value in values.items() if value is not None}

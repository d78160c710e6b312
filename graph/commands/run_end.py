"""How the command of `rootwalk run` ended, sent as one log event to the receiver of the job's telemetry."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable

from rootwalk.graph.job_process import JobProcess
from rootwalk.graph.supervisor import tell_exit_code
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.export import OtlpSender
from rootwalk.instrumentation.identity import read_host_id
from rootwalk.instrumentation.log_events import (
    LogEvent,
    Severity,
    Value,
    build_log_request,
    build_resource_logs,
)

__all__ = ["send_run_end"]

logger = logging.getLogger(__name__)

SCOPE = "rootwalk.graph"
# A receiver that is being started again takes some seconds; one on another host may be away for good.
MAX_SEND_S = 5.0
RETRY_S = 0.2


def send_run_end(
    endpoint: str, job_id: str, job: JobProcess, pause: Callable[[float], object] = time.sleep
) -> bool:
    """Send how the command ended; return whether it was received.

    Without a launch's number: which restart of the ranks was the last one is in the ranks' own telemetry.

    Args:
        endpoint: Base URL of the OTLP/HTTP receiver.
        job_id: The job.
        job: The command, which has ended.
        pause: Sleeps some seconds; what it raises comes through.
    """
    if not endpoint or job.ended_unix_ns is None:
        return False
    resource: dict[str, str | int] = {
        semconv.SERVICE_NAME: job_id,
        semconv.TRAINING_JOB_ID: job_id,
        semconv.HOST_ID: read_host_id(),
        semconv.HOST_NAME: os.uname().nodename,
    }
    request = build_log_request([build_resource_logs(resource, SCOPE, [_event(job)])])
    body = request.SerializeToString()
    sender = OtlpSender(endpoint, "logs")
    deadline_s = time.monotonic() + MAX_SEND_S
    try:
        while not sender.post(body, 1):
            if time.monotonic() >= deadline_s:
                logger.warning("the end of the command could not be sent to %s", endpoint)
                return False
            pause(RETRY_S)
    finally:
        sender.close()
    return not sender.refused_records


def _event(job: JobProcess) -> LogEvent:
    code = job.return_code
    attributes: dict[str, Value] = {semconv.TRAINING_RUN_ENDED_BY: job.ended_by}
    if code < 0:
        attributes[semconv.TRAINING_SIGNAL_NAME] = _signal_name(-code)
    else:
        attributes[semconv.PROCESS_EXIT_CODE] = code
    ended_ns = job.ended_unix_ns or time.time_ns()
    return LogEvent(
        semconv.EVENT_ROOTWALK_RUN_END,
        ended_ns,
        time.time_ns(),
        Severity.INFO if code == 0 else Severity.ERROR,
        f"the command ended: {tell_exit_code(code)}",
        attributes,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"

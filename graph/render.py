"""Say a verdict in words, at most 80 columns wide. Computes nothing: what is not in the verdict is not said."""

from __future__ import annotations

import textwrap

from rootwalk.graph.model import EvidenceView, Finding, Outcome, Verdict
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.graph.render_hang import hang_lines

WIDTH = 80
_LABEL = 10
# Keeps a number and its unit on one line; a plain space in the end.
_JOINT = "\N{NO-BREAK SPACE}"
_MAX_EVIDENCE = 2
_NAMES = {
    Signal.RUNNABLE: "run-queue wait",
    Signal.FOREIGN: "behind other processes",
    Signal.OWN: "behind its own threads",
    Signal.IDLE: "runnable on an idle CPU",
    Signal.RUNNING: "running",
    Signal.BLOCKED: "blocked",
    Signal.GC: "garbage collection",
    Signal.INTERPRETER: "waited for the interpreter lock",
    Signal.READ: "blocked on files",
    Signal.WRITE: "blocked on files",
    Signal.OUTPUT: "blocked on its output",
    Signal.SERVICE: "waited for answers",
    Signal.STOPPED: "stopped",
    Signal.INTERRUPT: "interrupts on its CPU",
    Signal.RECLAIM: "looked for free memory",
    Signal.LOADER_FILES: "waited for loader workers that waited for files",
    Signal.LOADER_WAIT: "waited for its loader workers",
    Signal.LOADER_CPU: "CPU time of loader workers",
    Signal.LOADER_RUNNABLE: "run-queue wait of loader workers",
    Signal.THROTTLED: "throttled",
    Signal.HOST: "lost on the host",
    Signal.TRANSFER: "longer transfers",
}
# What to show first for each reason.
_SHOWN: dict[Reason, tuple[Signal, ...]] = {
    Reason.CPU_CONTENTION: (Signal.RUNNABLE,),
    Reason.MONITOR_SELF: (Signal.RUNNABLE,),
    Reason.THREAD_OVERSUBSCRIPTION: (Signal.OWN,),
    Reason.CPU_QUOTA: (Signal.IDLE, Signal.THROTTLED),
    Reason.WORK_IMBALANCE: (Signal.RUNNING,),
    Reason.PY_GC: (Signal.GC,),
    Reason.DATALOADER_CPU: (Signal.LOADER_WAIT, Signal.LOADER_CPU),
    Reason.PY_GIL: (Signal.INTERPRETER,),
    Reason.DATALOADER_IO: (Signal.READ, Signal.LOADER_FILES),
    Reason.CKPT_IO: (Signal.WRITE,),
    Reason.BLOCKING_LOG: (Signal.OUTPUT,),
    Reason.EXTERNAL_SERVICE: (Signal.SERVICE,),
    Reason.PROCESS_SUSPENDED: (Signal.STOPPED,),
    Reason.IRQ_SOFTIRQ: (Signal.INTERRUPT,),
    Reason.MEM_RECLAIM: (Signal.RECLAIM,),
    Reason.UNKNOWN_HOST: (Signal.HOST, Signal.BLOCKED),
    Reason.UNKNOWN_NET: (Signal.TRANSFER,),
    Reason.GLOBAL_SLOW: (Signal.RUNNING,),
}
# What joins a title to what was waited for, which the last link of the chain names.
_BEFORE_OBJECT: dict[Reason, str] = {
    Reason.PY_GIL: ", held by ",
    Reason.DATALOADER_IO: ": ",
    Reason.CKPT_IO: ": ",
    Reason.BLOCKING_LOG: ": ",
    Reason.EXTERNAL_SERVICE: ": ",
}
_LOST_ON = " lost time on "


def seconds(value: float) -> str:
    """Return seconds with the digits that mean something: milliseconds below ten seconds, tenths above; joined.

    >>> seconds(0.0623).split()
    ['0.062', 's']
    >>> seconds(11.24).split()
    ['11.2', 's']
    """
    if abs(value) < 9.9995:
        # Adding zero turns "-0.000" into "0.000".
        return f"{round(value, 3) + 0.0:.3f}{_JOINT}s"
    return f"{value:.1f}{_JOINT}s"


def render_text(verdict: Verdict) -> str:
    """Return the verdict as text: one line first, then what it rests on."""
    if verdict.kind == "hang":
        lines = hang_lines(verdict, _line)
    elif verdict.outcome == Outcome.HEALTHY and verdict.step_s is None:
        lines = ["healthy: no rank has an unfinished operation"]
    elif verdict.outcome == Outcome.FINDING:
        blocks = [
            _finding(verdict, finding, index == 0) for index, finding in enumerate(verdict.findings)
        ]
        lines = "\n\n".join("\n".join(block) for block in blocks).split("\n")
    elif verdict.outcome == Outcome.HEALTHY:
        lines = _healthy(verdict)
    else:
        lines = _insufficient(verdict)
    return "\n".join([*lines, *_remarks(verdict)]).replace(_JOINT, " ") + "\n"


def _line(label: str, text: str) -> list[str]:
    first = label.ljust(_LABEL)
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * _LABEL, break_on_hyphens=False
    ) or [first.rstrip()]


def _finding(verdict: Verdict, finding: Finding, is_first: bool) -> list[str]:
    lines = textwrap.wrap(_headline(finding), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if verdict.step_s is not None and verdict.healthy_step_s is not None:
        ratio = (
            100.0 * (verdict.step_s / verdict.healthy_step_s - 1.0)
            if verdict.healthy_step_s > 0.0
            else 0.0
        )
        without = (
            f"; without it {seconds(finding.predicted_step_s)}"
            if finding.predicted_step_s is not None
            else ""
        )
        band = finding.confidence.band
        lines += _line(
            "step",
            f"{seconds(verdict.step_s)}, healthy {seconds(verdict.healthy_step_s)} ({ratio:+.0f} %), "
            f"{band} confidence{without}",
        )
    lines += _line("evidence", _evidence(finding))
    if finding.victims.count and finding.victims.waited_s is not None:
        lines += _line("victims", _victims(finding))
    lines += _line("action", finding.action)
    lines += _line("owner", _owner(verdict, finding, is_first))
    return lines


def headline(finding: Finding) -> str:
    """Return the first line about a finding, unwrapped: who, why, and how many seconds a step."""
    return _headline(finding).replace(_JOINT, " ")


def _headline(finding: Finding) -> str:
    title = RULES[Reason(finding.reason)].title
    share = finding.seconds.share if finding.seconds.share is not None else 0.0
    subject = finding.subject
    if subject.rank is None:
        who = (
            "all ranks" if finding.pattern == "uniform" else f"communicator {subject.communicator}"
        )
        if finding.reason == Reason.GLOBAL_SLOW:
            title = "slower than before, no late arriver"
        return f"{who}: {title}, +{seconds(share)}/step"
    aggressor = subject.aggressor
    if finding.reason in (Reason.CPU_CONTENTION, Reason.MONITOR_SELF):
        by = (
            f"'{aggressor.name}' pid {aggressor.pid}"
            if aggressor is not None
            else "other processes"
        )
        title = f"{title} by {by}"
    elif finding.reason == Reason.DATALOADER_CPU:
        title = f"{title} {_decoding(finding)}"
    elif finding.reason in _BEFORE_OBJECT:
        title = f"{title}{_BEFORE_OBJECT[Reason(finding.reason)]}{finding.chain[-1].text.rsplit(_LOST_ON, 1)[-1]}"
    elif finding.reason == Reason.CPU_QUOTA:
        limit = _by_signal(finding).get(Signal.CPU_LIMIT)
        if limit is not None and limit.value is not None:
            title = f"throttled by its limit of {limit.value:.2f} CPU"
    return f"rank {subject.rank} ({_place(finding)}): {title}, +{seconds(share)}/step"


def _in_workers(finding: Finding) -> bool:
    """Return whether a thread waited for loader workers, or stood behind them."""
    return any(
        link.node == finding.subject.node and link.edge in ("running", "contends_with")
        for link in finding.chain
        if link.node.startswith("process:")
    )


def _decoding(finding: Finding) -> str:
    """Return where samples are decoded, and how much more CPU time that takes."""
    where = "in loader workers" if _in_workers(finding) else "in the main process"
    row = _by_signal(finding).get(_shown(finding)[-1])
    if row is None or row.value is None or row.history is None:
        return where
    return f"{where}: {seconds(row.value - row.history)}/step more CPU"


def _shown(finding: Finding) -> tuple[Signal, ...]:
    """Return the signals to show first: those of the reason, of where it sits, of what was held up."""
    reason = Reason(finding.reason)
    if reason is Reason.DATALOADER_CPU and finding.subject.rank is not None:
        if not _in_workers(finding):
            return (Signal.RUNNING,)
    elif Signal.LOADER_RUNNABLE in _by_signal(finding):
        return (Signal.LOADER_RUNNABLE, *_SHOWN[reason][1:])
    return _SHOWN[reason]


def _by_signal(finding: Finding) -> dict[str, EvidenceView]:
    result: dict[str, EvidenceView] = {}
    for row in finding.evidence:
        result.setdefault(row.signal, row)
    return result


def _place(finding: Finding) -> str:
    cpu = next(
        (link.text.rsplit(" on ", 1)[-1] for link in finding.chain if link.edge == "runnable"), ""
    )
    host = finding.subject.host or "unknown host"
    return f"{host}, {cpu}" if cpu.startswith("CPU ") else host


def _evidence(finding: Finding) -> str:
    by_signal = _by_signal(finding)
    parts = []
    for signal in _shown(finding)[:_MAX_EVIDENCE]:
        shown = by_signal.get(signal)
        if shown is None or shown.value is None:
            continue
        text = f"{_NAMES[signal]} {seconds(shown.value)}/step"
        if shown.history is not None and signal not in (
            Signal.HOST,
            Signal.TRANSFER,
            Signal.LOADER_RUNNABLE,
        ):
            text += f", before {seconds(shown.history)}"
        if shown.peers is not None:
            text += f", peers {seconds(shown.peers)}"
        parts.append(text)
    parts += [item.because for item in finding.excluded]
    return "; ".join(parts) or "the replay of the recorded steps alone"


def _victims(finding: Finding) -> str:
    count = finding.victims.count
    ranks = "rank" if count == 1 else "ranks"
    waited = seconds(finding.victims.waited_s or 0.0)
    where = next(
        (
            link.text.split(" waited for", 1)[0]
            for link in finding.chain
            if link.edge == "waits_for"
        ),
        "",
    )
    return f"{count} {ranks} waited {waited}/step" + (f", longest in {where}" if where else "")


def _owner(verdict: Verdict, finding: Finding, is_first: bool) -> str:
    if (
        not is_first
        or verdict.unexplained_s is None
        or verdict.step_s is None
        or verdict.healthy_step_s is None
    ):
        return finding.owner
    total = verdict.step_s - verdict.healthy_step_s
    return (
        f"{finding.owner.ljust(18)}unexplained {seconds(verdict.unexplained_s)} of {seconds(total)}"
    )


def _steps(verdict: Verdict) -> int:
    first, last = verdict.window.first_step, verdict.window.last_step
    return 0 if first is None or last is None else last - first + 1


def _healthy(verdict: Verdict) -> list[str]:
    text = f"healthy: {seconds(verdict.step_s or 0.0)} a step over the last {_steps(verdict)} steps"
    if verdict.healthy_step_s is not None:
        text += f" (usual {seconds(verdict.healthy_step_s)}); no sustained slowdown above 10 % or the job's own noise"
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _insufficient(verdict: Verdict) -> list[str]:
    if verdict.step_s is None:
        text = "not enough evidence: no complete step of all ranks is in the store"
    elif verdict.kind == "slow" and verdict.healthy_step_s is not None:
        text = (
            f"not enough evidence: {seconds(verdict.step_s)} a step since step {verdict.window.first_step}, "
            f"healthy {seconds(verdict.healthy_step_s)}, and no cause that the records support"
        )
    else:
        text = (
            f"not enough evidence: {_steps(verdict)} steps of {seconds(verdict.step_s)}, "
            "fewer than the 20 of history that a comparison needs"
        )
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _remarks(verdict: Verdict) -> list[str]:
    lines: list[str] = []
    if verdict.missing_sensors:
        names = ", ".join(f"{m.sensor} ({m.reason})" for m in verdict.missing_sensors)
        lines += _line("not seen", names)
    for item in verdict.data_quality:
        lines += _line("data", item.text)
    if verdict.cost.lowered_hosts:
        hosts = ", ".join(verdict.cost.lowered_hosts)
        lines += _line("detail", f"lowered on {hosts} at some time, to keep the agent's budget")
    return lines

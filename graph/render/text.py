"""Say a verdict in words, at most 80 columns wide. Computes nothing: what is not in the verdict is not said."""

from __future__ import annotations

import datetime as dt
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rootwalk.graph.model import EdgeKind, EvidenceView, Finding, Outcome, Verdict
from rootwalk.graph.operations.rules import rule_of
from rootwalk.graph.passages import JOINT, Passage, visible
from rootwalk.graph.reasons import RULES, Reason, Signal
from rootwalk.graph.render.counters import CALLS_SHOWN, COUNTER_NAMES, COUNTERS_SHOWN, counter_text
from rootwalk.graph.render.device import device_text, own_chain, path_name
from rootwalk.graph.render.digits import money, seconds
from rootwalk.graph.render.end import end_headline, end_passage, has_ended_well, is_end
from rootwalk.graph.render.exclusions import excluded_rows
from rootwalk.graph.render.flow import flow_passages, is_flow
from rootwalk.graph.render.hang import hang_headline, hang_passage, hang_passages
from rootwalk.graph.render.metric import is_metric, metric_headline, metric_passages
from rootwalk.graph.render.nothing_named import say_healthy, say_insufficient
from rootwalk.graph.render.remarks import remarks
from rootwalk.graph.render.stacks import frame_name, stack_text

WIDTH = 80
_LABEL = 10
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
    Signal.DEVICE_WAIT: "waited for its device",
    Signal.MEMORY_MAP: "waited for its memory map",
    Signal.FILES: "blocked on files",
    Signal.LOADER_FILES: "waited for loader workers that waited for files",
    Signal.LOADER_WAIT: "waited for its loader workers",
    Signal.LOADER_CPU: "CPU time of loader workers",
    Signal.LOADER_RUNNABLE: "run-queue wait of loader workers",
    Signal.THROTTLED: "throttled",
    Signal.HOST: "lost on the host",
    Signal.TRANSFER: "longer transfers",
    Signal.COMPUTE: "computed",
    Signal.EXCESS: "longer computations",
    Signal.INPUT_WAIT: "loaded data while the device was idle",
    Signal.INPUT_BLOCKED: "blocked while it loaded input",
    Signal.OPERATOR: "in operators meanwhile",
    Signal.DEVICE_BUSY: "device busy meanwhile",
    Signal.STEP: "length of a step",
    **COUNTER_NAMES,
}
# Not in the text, which says them in its own lines.
_MORE_NAMES = {
    Signal.WAIT: "arrived after the first rank",
    Signal.CPU_LIMIT: "limit of its control group",
    Signal.AGGRESSOR: "the other process ran",
}
# What to show first for each reason.
_SHOWN: dict[Reason, tuple[Signal, ...]] = {
    Reason.CPU_CONTENTION: (Signal.RUNNABLE,),
    Reason.MONITOR_SELF: (Signal.RUNNABLE,),
    Reason.THREAD_OVERSUBSCRIPTION: (Signal.OWN,),
    Reason.CPU_QUOTA: (Signal.IDLE, Signal.THROTTLED),
    Reason.WORK_IMBALANCE: (Signal.RUNNING, Signal.CUDA_TIME),
    Reason.PY_GC: (Signal.GC,),
    Reason.DATALOADER_CPU: (Signal.LOADER_WAIT, Signal.LOADER_CPU),
    Reason.PY_GIL: (Signal.INTERPRETER,),
    Reason.DATALOADER_IO: (Signal.READ, Signal.LOADER_FILES),
    Reason.CKPT_IO: (Signal.WRITE,),
    Reason.BLOCKING_LOG: (Signal.OUTPUT,),
    Reason.EXTERNAL_SERVICE: (Signal.SERVICE,),
    Reason.PROCESS_SUSPENDED: (Signal.STOPPED,),
    Reason.IRQ_SOFTIRQ: (Signal.INTERRUPT, Signal.STOLEN),
    Reason.MEM_RECLAIM: (Signal.RECLAIM,),
    Reason.UNKNOWN_GPU: (Signal.DEVICE_WAIT, Signal.CUDA_TIME),
    Reason.KERNEL_LOCK: (Signal.MEMORY_MAP,),
    Reason.STORAGE_SLOW: (Signal.FILES,),
    Reason.UNKNOWN_HOST: (Signal.HOST, Signal.BLOCKED),
    Reason.UNKNOWN_NET: (Signal.TRANSFER,),
    Reason.GLOBAL_SLOW: (Signal.RUNNING, Signal.CPU_PROBE, Signal.RUNNABLE),
    Reason.COLD_START: (Signal.RUNNING, Signal.RUNNABLE),
    Reason.RELEASE_REGRESSION: (Signal.STEP,),
    Reason.SLOW_COMPUTE: (Signal.COMPUTE,),
    Reason.STAGE_IMBALANCE: (Signal.EXCESS, Signal.RUNNING),
    Reason.SEQ_IMBALANCE: (Signal.EXCESS,),
    **COUNTERS_SHOWN,
}
# What joins a title to what was waited for, which the last link of the chain names.
_BEFORE_OBJECT: dict[Reason, str] = {
    Reason.PY_GIL: ", held by ",
    Reason.DATALOADER_IO: ": ",
    Reason.CKPT_IO: ": ",
    Reason.KERNEL_LOCK: ": ",
    Reason.BLOCKING_LOG: ": ",
    Reason.EXTERNAL_SERVICE: ": ",
}
# As container tools print an id.
_SHORT_ID = 12
_LOST_ON = " lost time on "
_SLOWED_BY = " was slowed by "


def signal_name(signal: str) -> str:
    """Return what a signal of the evidence is called in words; its last part where it has no name.

    >>> signal_name("training.gc.time")
    'garbage collection'
    """
    if (name := frame_name(signal) or path_name(signal)) is not None:
        return name
    names = {str(key): name for key, name in (_NAMES | _MORE_NAMES).items()}
    return names.get(signal, signal.rpartition(".")[2].replace("_", " "))


def shown_first(finding: Finding) -> tuple[str, ...]:
    """Return the signals that the text shows of a finding, the most telling first."""
    return tuple(map(str, _shown(finding))) if Reason(finding.reason) in _SHOWN else ()


def render_text(verdict: Verdict) -> str:
    """Return the verdict as text: one line first, then what it rests on."""
    blocks = ["\n".join(_wrapped(text)) for text in opening(verdict)] + [
        "\n".join([*_wrapped(passage.headline), *_lines(passage.rows)])
        for passage in passages(verdict)
    ]
    return "\n".join(["\n\n".join(blocks), *_lines(remarks(verdict))]).replace(JOINT, " ") + "\n"


def opening(verdict: Verdict) -> tuple[str, ...]:
    """Return what is said before all findings: how the job ended, where it did not end well."""
    return () if verdict.end is None or has_ended_well(verdict) else (verdict.end.text,)


def passages(verdict: Verdict) -> list[Passage]:
    """Return what the verdict says, a passage for each finding; one where there is none. Numbers keep their units."""
    if ends := [end_passage(finding) for finding in verdict.findings if is_end(finding)]:
        return [*_of_others(verdict), *ends]
    if verdict.hang is not None:
        return hang_passages(verdict)
    if opening(verdict) and not verdict.findings and verdict.end and verdict.end.last_step is None:
        return [Passage("not enough evidence: no step was completed, so nothing can be compared")]
    if is_metric(verdict):
        return metric_passages(verdict)
    if is_flow(verdict):
        return flow_passages(verdict)
    if verdict.outcome == Outcome.HEALTHY and verdict.step_s is None:
        return [Passage("healthy: no rank has an unfinished operation")]
    if verdict.outcome == Outcome.FINDING:
        return [_passage(verdict, f, index == 0) for index, f in enumerate(verdict.findings)]
    if verdict.outcome == Outcome.HEALTHY:
        return [Passage(say_healthy(verdict))]
    known = tuple(("known", f"{item.text}: {seconds(item.value)}") for item in verdict.known)
    return [Passage(say_insufficient(verdict), known)]


def _passage(verdict: Verdict, finding: Finding, is_first: bool) -> Passage:
    if finding.kind == "hang":
        return hang_passage(finding)
    return Passage(_headline(finding), _rows(verdict, finding, is_first))


def _of_others(verdict: Verdict) -> list[Passage]:
    """Return what a verdict says besides how its job ended; nothing where that is all it says."""
    others = tuple(finding for finding in verdict.findings if not is_end(finding))
    return passages(replace(verdict, findings=others)) if others else []


def _wrapped(text: str, first: str = "", rest: str = "  ") -> list[str]:
    return textwrap.wrap(
        visible(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _lines(rows: Sequence[tuple[str, str]]) -> list[str]:
    return [line for label, text in rows for line in _line(label, text)]


def _line(label: str, text: str) -> list[str]:
    first = label.ljust(_LABEL)
    return _wrapped(text, first, " " * _LABEL) or [first.rstrip()]


def _rows(verdict: Verdict, finding: Finding, is_first: bool) -> tuple[tuple[str, str], ...]:
    rows = [("code", code_text(finding))]
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
        text = (
            f"{seconds(verdict.step_s)}, healthy {seconds(verdict.healthy_step_s)} ({ratio:+.0f} %), "
            f"{band} confidence{without}"
        )
        rows.append(("step", text))
    rows.append(("evidence", _evidence(finding)))
    rows += excluded_rows(finding)
    if container := _container(finding):
        rows.append(("runs in", container))
    if stack := stack_text(finding):
        rows.append(("stack", stack))
    if device := device_text(finding):
        rows.append(("device", device))
    if finding.victims.count and finding.victims.waited_s is not None:
        rows.append(("victims", _victims(finding)))
    rows.append(("action", finding.action))
    rows.append(("owner", _owner(verdict, finding, is_first)))
    return tuple(rows)


def code_text(finding: Finding) -> str:
    """Return the reason code, since when, and what was lost so far.

    `CPU_CONTENTION; since step 90 (20:01:54 UTC); 11 s lost in 60 steps`
    """
    parts = [str(finding.reason)]
    if finding.onset is not None and finding.onset.step is not None:
        at = ""
        if finding.onset.unix_ns is not None:
            at = f" ({dt.datetime.fromtimestamp(finding.onset.unix_ns / 1e9, dt.UTC):%H:%M:%S} UTC)"
        parts.append(f"since step {finding.onset.step}{at}")
    if finding.lost.wall_s is not None and finding.lost.steps is not None:
        steps = "step" if finding.lost.steps == 1 else "steps"
        cost = "" if finding.lost.cost is None else f" (cost {money(finding.lost.cost)})"
        parts.append(f"{seconds(finding.lost.wall_s)} lost in {finding.lost.steps} {steps}{cost}")
    return "; ".join(parts)


def render_next(verdict: Verdict, store: str | None) -> str:
    """Return the commands that lead on from a verdict, a line each; nothing where the job is healthy or unknown.

    Args:
        verdict: The verdict.
        store: Path of its store; None where the store is not kept.
    """
    if verdict.outcome == Outcome.HEALTHY or verdict.job.attempt is None:
        return ""
    commands = [f"rootwalk explain {verdict.findings[0].reason}"] if verdict.findings else []
    if store is not None:
        commands += [f"rootwalk {verb} {shlex.quote(store)}" for verb in ("report", "serve")]
    return "".join(
        f"{'' if row else 'next':<{_LABEL}}{command}\n" for row, command in enumerate(commands)
    )


def headline(finding: Finding) -> str:
    """Return the first line about a finding, unwrapped: who, why, and how many seconds a step."""
    heads = {"metric_only": metric_headline, "hang": hang_headline}
    return heads.get(finding.method, _headline)(finding).replace(JOINT, " ")


def _headline(finding: Finding) -> str:
    if is_end(finding):
        return end_headline(finding)
    reason = Reason(finding.reason)
    is_by_counter = reason in RULES and RULES[reason].magnitude in _by_signal(finding)
    title = rule_of(reason, is_by_counter=is_by_counter).title
    share = finding.seconds.share if finding.seconds.share is not None else 0.0
    subject = finding.subject
    if finding.reason == Reason.UNKNOWN_HOST:
        if Signal.INPUT_WAIT in _by_signal(finding):
            title = "the device waited for input, why is not seen"
        elif Signal.INPUT_BLOCKED in _by_signal(finding):
            title = "waits for input, why is not seen"
    if finding.chain and finding.chain[-1].edge == EdgeKind.TRANSFERS_OVER:
        title = f"{title} on {finding.chain[-1].text.rsplit(' over ', 1)[-1]}"
    if subject.rank is None:
        who = _whoever(finding)
        if finding.reason == Reason.GLOBAL_SLOW:
            who_is = (
                "their CPUs are slower" if Signal.CPU_PROBE in _by_signal(finding) else "slower"
            )
            title = f"{who_is} than before, no late arriver"
        elif finding.reason == Reason.RELEASE_REGRESSION:
            title += f": {finding.chain[-1].text.rsplit(_SLOWED_BY, 1)[-1]}"
        elif finding.reason == Reason.CPU_CONTENTION:
            title += f" by {_crowd(finding)}"
        return f"{who}: {title}, +{seconds(share)}/step"
    if finding.reason in (Reason.CPU_CONTENTION, Reason.MONITOR_SELF):
        title = f"{title} by {_aggressor(finding) or 'other processes'}"
    elif finding.reason == Reason.DATALOADER_CPU:
        title = f"{title} {_decoding(finding)}"
    elif finding.reason in _BEFORE_OBJECT:
        title = f"{title}{_BEFORE_OBJECT[Reason(finding.reason)]}{own_chain(finding)[-1].text.rsplit(_LOST_ON, 1)[-1]}"
    elif finding.reason == Reason.CPU_QUOTA:
        limit = _by_signal(finding).get(Signal.CPU_LIMIT)
        if limit is not None and limit.value is not None:
            title = f"throttled by its limit of {limit.value:.2f} CPU"
    return f"rank {subject.rank} ({_place(finding)}): {title}, +{seconds(share)}/step"


def _aggressor(finding: Finding) -> str | None:
    """Return the process that is to blame, None where it is not one."""
    aggressor = finding.subject.aggressor
    return None if aggressor is None else f"'{aggressor.name}' pid {aggressor.pid}"


def _container(finding: Finding) -> str | None:
    """Return the container and the pod of the process that is to blame; None where it is in neither."""
    aggressor = finding.subject.aggressor
    if aggressor is None:
        return None
    parts = [f"container {aggressor.container[:_SHORT_ID]}"] if aggressor.container else []
    parts += [f"pod {aggressor.pod}"] if aggressor.pod else []
    return ", ".join(parts) or None


def _crowd(finding: Finding) -> str:
    """Return the processes that are to blame for what all ranks of a host have alike."""
    return _aggressor(finding) or finding.chain[-1].text.rsplit(_SLOWED_BY, 1)[-1]


def _whoever(finding: Finding) -> str:
    """Return what is to blame, or who is slowed down, where no rank is to blame."""
    if finding.reason == Reason.CPU_CONTENTION:
        return f"all ranks on {finding.subject.host}"
    if finding.subject.stage is not None:
        return f"stage {finding.subject.stage}"
    if finding.reason == Reason.SEQ_IMBALANCE:
        return "the data"
    if finding.pattern == "rotating":
        return "one rank after another"
    is_uniform = finding.pattern == "uniform"
    return "all ranks" if is_uniform else f"communicator {finding.subject.communicator}"


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
    if Signal.INPUT_WAIT in _by_signal(finding):
        return (Signal.INPUT_WAIT, Signal.OPERATOR, Signal.DEVICE_BUSY)
    if Signal.INPUT_BLOCKED in _by_signal(finding):
        return (Signal.INPUT_BLOCKED,)
    if Signal.CUDA_CALLS in _by_signal(finding):
        return CALLS_SHOWN
    if reason is Reason.DATALOADER_CPU and finding.subject.rank is not None:
        if not _in_workers(finding):
            return (Signal.RUNNING,)
    elif Signal.LOADER_RUNNABLE in _by_signal(finding):
        return (Signal.LOADER_RUNNABLE, *_SHOWN[reason][1:])
    return _SHOWN[reason]


def _by_signal(finding: Finding) -> dict[str, EvidenceView]:
    result: dict[str, EvidenceView] = {}
    for row in finding.evidence:
        # Calls of CUDA of more than one kind were looked at: those of the finding are those that became longer.
        first = result.setdefault(row.signal, row)
        if row.signal == Signal.CUDA_TIME and _grown(row) > _grown(first):
            result[row.signal] = row
    return result


def _grown(row: EvidenceView) -> float:
    return (row.value or 0.0) - (row.history or 0.0)


def _place(finding: Finding) -> str:
    cpu = next(
        (link.text.rsplit(" on ", 1)[-1] for link in finding.chain if link.edge == "runnable"), ""
    )
    stage = finding.subject.stage
    host = finding.subject.host or ("unknown host" if stage is None else f"stage {stage}")
    return f"{host}, {cpu}" if cpu.startswith("CPU ") else host


def _evidence(finding: Finding) -> str:
    by_signal = _by_signal(finding)
    parts = []
    for signal in _shown(finding)[:_MAX_EVIDENCE]:
        shown = by_signal.get(signal)
        if shown is None or shown.value is None:
            continue
        if shown.unit != "s" or signal in COUNTER_NAMES:
            is_wait = signal is Signal.CUDA_TIME and finding.reason == Reason.WORK_IMBALANCE
            name = _NAMES[signal] if not is_wait else "in calls of CUDA that wait"
            parts.append(counter_text(name, shown))
            continue
        text = f"{_NAMES[signal]} {seconds(shown.value)}/step"
        if shown.history is not None and signal not in (
            Signal.HOST,
            Signal.TRANSFER,
            Signal.LOADER_RUNNABLE,
            Signal.INPUT_WAIT,
            Signal.INPUT_BLOCKED,
        ):
            text += f", before {seconds(shown.history)}"
        if shown.peers is not None:
            text += f", peers {seconds(shown.peers)}"
        parts.append(text)
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

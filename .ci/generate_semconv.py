"""Generate `instrumentation/semconv.py` and the documents' tables of signals and sensors from the registry.

The registry is `instrumentation/registry/*.yaml`. Run as ``make registry``; a test runs
it with ``--check``, so that they cannot drift apart.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
from typing import Any

import yaml
from documents import ROOT, Documents

REGISTRY = ROOT / "instrumentation" / "registry"
TARGET = ROOT / "instrumentation" / "semconv.py"
LINE_LENGTH = 100

# What the registry's form has no field for: how often a signal is sent, and what it needs.
SENT = {
    "training.step": ("each step", "hooks, rank 0"),
    "training.rank_step": ("each step", "hooks"),
    "training.phase": ("each phase", "hooks"),
    "collective": ("each collective", "hooks, PyTorch 2.15"),
    "operation": ("each operation", "`rootwalk import oplog`"),
    "training.profile": ("each profile", "`rootwalk import`, PyTorch's profiler"),
    "training.device.path": (
        "each step of a profile",
        "`rootwalk import`, a device in the profile",
    ),
    "training.device.operation": (
        "at most 8 a step of a profile",
        "`rootwalk import`, a device in the profile",
    ),
    "stall": ("each, from 1 ms", "agent; who ran instead: BPF"),
    "python.gc": ("each, from 1 ms", "hooks"),
    "rootwalk.finding": ("each finding", "`receive --diagnose`, `run`"),
    "training.step.duration": ("5 s", "`receive --diagnose`, `run`"),
    "rootwalk.finding.lost.time": ("each diagnosis", "`receive --diagnose`, `run`"),
    "rootwalk.finding.count": ("each diagnosis", "`receive --diagnose`, `run`"),
    "rootwalk.finding.open": ("each diagnosis", "`receive --diagnose`, `run`"),
    "torch.compile": ("each", "hooks"),
    "torch.allocator": ("each step that had retries", "hooks, a GPU"),
    "rootwalk.finding.opened": ("each finding", "`receive --diagnose`, `run`"),
    "rootwalk.finding.closed": ("each finding", "`receive --diagnose`, `run`"),
    "training.process.signal": ("each", "agent, BPF"),
    "training.process.end": ("each", "agent; how it ended: BPF"),
    "training.process.oom_kill": ("each", "agent, BPF"),
    "training.rank.progress": ("5 s, while a rank makes none", "agent"),
    "training.collective.progress": ("5 s, while a rank makes none", "agent, PyTorch 2.15"),
    "training.rank.stack": (
        "a few times, while a rank makes none",
        "agent, the right to read its memory",
    ),
    "training.flight_recorder.dump": ("once, while a rank makes none", "PyTorch's Flight Recorder"),
    "training.process.exception": ("each", "`rootwalk run`'s hooks"),
    "rootwalk.run.end": ("once", "`rootwalk run`"),
    "training.kernel.message": ("each, 10 s apart", "agent, the right to read /dev/kmsg"),
    "training.flight_record": ("each dump", "`rootwalk import`, PyTorch's Flight Recorder"),
    "rootwalk.import.broken_file": ("each file", "`rootwalk import`"),
    "rootwalk.import.note": ("each file", "`rootwalk import`"),
    "training.thread.time": ("5 s", "agent"),
    "training.thread.contention.time": ("5 s", "agent, BPF"),
    "training.thread.interrupt.time": ("5 s", "agent, BPF"),
    "training.kernel.messages": ("5 s", "agent, the right to read /dev/kmsg"),
    "training.cgroup.cpu.throttled.time": ("5 s", "agent, a control group with a CPU limit"),
    "training.cgroup.cpu.throttled.periods": ("5 s", "agent, a control group with a CPU limit"),
    "training.cgroup.cpu.periods": ("5 s", "agent, a control group with a CPU limit"),
    "training.cgroup.cpu.limit": ("5 s", "agent, a control group with a CPU limit"),
    "process.network.io": ("5 s", "agent"),
    "training.tcp.retransmitted.io": ("5 s", "agent"),
    "training.tcp.retransmitted.segments": ("5 s", "agent"),
    "training.tcp.limited.time": ("5 s", "agent"),
    "training.tcp.busy.time": ("5 s", "agent"),
    "training.tcp.connections": ("5 s", "agent"),
    "training.tcp.rtt.mean": ("5 s", "agent"),
    "training.tcp.rtt.max": ("5 s", "agent"),
    "training.tcp.rtt.floor": ("5 s", "agent"),
    "training.tcp.host.events": ("5 s", "agent"),
    "training.pressure.time": ("5 s", "agent, PSI; of a rank: control groups of version 2"),
    "training.cpu.frequency": ("5 s", "agent, cpufreq"),
    "training.cpu.frequency.limit": ("5 s", "agent, cpufreq"),
    "training.host.cpu.throttles": ("30 s", "agent, an Intel processor"),
    "training.host.cpu.throttled.time": ("30 s", "agent, an Intel processor"),
    "training.cpu.allowed": ("5 s; other threads 30 s", "agent"),
    "training.cpu.allowed.cores": ("5 s", "agent"),
    "training.cpu.allowed.shared_cores": ("5 s", "agent"),
    "training.numa.nodes": ("5 s", "agent"),
    "training.thread.migrations": ("5 s", "agent, `CONFIG_SCHED_DEBUG`"),
    "training.thread.context_switches": ("5 s", "agent"),
    "training.host.numa.allocations": ("10 s", "agent"),
    "training.host.memory.stalls": ("5 s", "agent"),
    "training.host.oom_kills": ("5 s", "agent"),
    "training.cgroup.memory.events": ("5 s", "agent, a memory controller"),
    "training.cgroup.memory.usage": ("5 s", "agent, a memory controller"),
    "training.cgroup.memory.limit": ("5 s", "agent, a memory controller"),
    "training.cgroup.memory.under_oom": ("5 s", "agent, a version 1 memory controller"),
    "training.cgroup.frozen": ("5 s", "agent, a freezer"),
    "training.nic.carrier.changes": ("5 s", "agent"),
    "training.nic.pause.frames": ("10 s", "agent, a driver that counts them"),
    "training.nic.pause.time": ("10 s", "agent, a driver that counts it"),
    "training.nic.events": ("10 s", "agent, a driver that counts them"),
    "training.rdma.events": ("5 s or slower", "agent, an RDMA device"),
    "training.memory.reclaims": ("5 s", "agent, BPF"),
    "training.memory.reclaim.time": ("5 s", "agent, BPF"),
    "training.memory.major_faults": ("5 s", "agent"),
    "training.disk.operations": ("5 s", "agent, BPF"),
    "training.disk.io": ("5 s", "agent, BPF"),
    "training.disk.queue.time": ("5 s", "agent, BPF"),
    "training.disk.device.time": ("5 s", "agent, BPF"),
    "training.gpu.frequency": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.throttled.time": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.processes": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.peers": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.pcie.bandwidth.limit": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.nvlink.links": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.frequency.limit": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.throttle.state": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.power.limit": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.memory.errors": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.remapped.rows": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.remap.state": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.recovery.action": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.setting": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.process.memory": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.pcie.bandwidth.max": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.pcie.generation": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.pcie.width": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.pcie.replays": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.nvlink.errors": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.nvlink.io": ("5 s", "agent, an NVIDIA driver"),
    "training.gpu.signal.missing": ("5 s", "agent, an NVIDIA driver"),
    "training.cuda.calls": ("5 s", "agent, BPF, a GPU"),
    "training.cuda.call.time": ("5 s", "agent, BPF, a GPU"),
    "training.cuda.call.failures": ("5 s", "agent, BPF, a GPU"),
    "training.cuda.copy.io": ("5 s", "agent, BPF, a GPU"),
    "training.cuda.allocated.size": ("5 s", "agent, BPF, a GPU"),
    "training.nccl.connections": ("5 s", "agent, NCCL's debug file"),
    "training.nccl.choices": ("5 s", "agent, NCCL's debug file"),
    "training.nccl.calls": ("5 s", "agent, BPF, a GPU"),
    "training.nccl.operations": ("5 s", "agent, BPF, a GPU"),
    "training.nccl.call.time": ("5 s", "agent, BPF, a GPU"),
    "training.nccl.call.failures": ("5 s", "agent, BPF, a GPU"),
    "training.nccl.io": ("5 s", "agent, BPF, a GPU"),
    "rootwalk.sensor.state": ("5 s", "agent"),
    "rootwalk.agent.cpu.time": ("5 s", "agent"),
    "rootwalk.agent.memory.usage": ("5 s", "agent"),
    "rootwalk.agent.events": ("5 s", "agent"),
    "rootwalk.agent.sent.size": ("5 s", "agent"),
    "rootwalk.agent.cost.ratio": ("5 s", "agent, ranks that train"),
    "rootwalk.agent.detail.lowered": ("5 s", "agent"),
    "rootwalk.agent.level": ("5 s", "agent"),
    "rootwalk.bpf.run.time": ("5 s", "agent, BPF"),
    "rootwalk.dropped": ("5 s", "agent or hooks"),
}

# Core convention attributes that our spans and metrics use unchanged (conventions 1.44).
CORE_ATTRIBUTES = {
    "cpu.logical_number": "int",
    "cpu.mode": "string",
    "cpython.gc.generation": "int",
    "disk.io.direction": "string",
    "host.id": "string",
    "host.name": "string",
    "error.type": "string",
    "hw.driver_version": "string",
    "hw.gpu.task": "string",
    "hw.id": "string",
    "hw.limit_type": "string",
    "hw.name": "string",
    "hw.sensor_location": "string",
    "hw.state": "string",
    "hw.type": "string",
    "network.interface.name": "string",
    "network.io.direction": "string",
    "network.peer.port": "int",
    "network.transport": "string",
    "process.context_switch.type": "string",
    "process.executable.build_id.gnu": "string",
    "exception.type": "string",
    "process.exit.code": "int",
    "process.pid": "int",
    "profile.frame.type": "string",
    "service.instance.id": "string",
    "service.name": "string",
    "service.version": "string",
    "system.device": "string",
    "system.filesystem.type": "string",
    "system.paging.direction": "string",
    "system.paging.fault.type": "string",
    "telemetry.sdk.language": "string",
    "telemetry.sdk.name": "string",
    "telemetry.sdk.version": "string",
    "thread.id": "int",
    "thread.name": "string",
}

# Core convention metrics that we send unchanged (conventions 1.44): instrument, unit, what it tells, attributes that we
# give, and for the table when it is sent and what it needs.
CORE_METRICS = {
    "system.cpu.time": (
        "counter",
        "s",
        "Time of the host's CPUs by mode: stolen by a hypervisor, interrupts, waiting for disks.",
        ("cpu.mode",),
        ("5 s", "agent"),
    ),
    "system.cpu.logical.count": (
        "updowncounter",
        "{cpu}",
        "CPUs of the host that are switched on.",
        (),
        ("10 s", "agent"),
    ),
    "process.thread.count": (
        "updowncounter",
        "{thread}",
        "Threads of the rank's process.",
        (),
        ("5 s", "agent"),
    ),
    "system.paging.operations": (
        "counter",
        "{operation}",
        "Pages that the host swapped in and out.",
        ("system.paging.direction", "system.paging.fault.type"),
        ("5 s", "agent"),
    ),
    "system.paging.faults": (
        "counter",
        "{fault}",
        "Page faults of the host; major ones waited for a disk.",
        ("system.paging.fault.type",),
        ("5 s", "agent"),
    ),
    "system.disk.io": (
        "counter",
        "By",
        "Bytes read from and written to each disk.",
        ("disk.io.direction", "system.device"),
        ("5 s", "agent"),
    ),
    "system.disk.operations": (
        "counter",
        "{operation}",
        "Requests that each disk completed.",
        ("disk.io.direction", "system.device"),
        ("5 s", "agent"),
    ),
    "system.disk.operation_time": (
        "counter",
        "s",
        "Time that each disk's requests took, added up.",
        ("disk.io.direction", "system.device"),
        ("5 s", "agent"),
    ),
    "system.disk.io_time": (
        "counter",
        "s",
        "Time for which each disk was busy.",
        ("system.device",),
        ("5 s", "agent"),
    ),
    "system.network.io": (
        "counter",
        "By",
        "Bytes that passed each network interface.",
        ("network.interface.name", "network.io.direction"),
        ("5 s", "agent"),
    ),
    "system.network.packet.count": (
        "counter",
        "{packet}",
        "Packets that passed each network interface.",
        ("network.io.direction", "system.device"),
        ("5 s", "agent"),
    ),
    "system.network.packet.dropped": (
        "counter",
        "{packet}",
        "Packets that were dropped at each network interface without an error.",
        ("network.interface.name", "network.io.direction"),
        ("5 s", "agent"),
    ),
    "system.network.errors": (
        "counter",
        "{error}",
        "Errors at each network interface.",
        ("network.interface.name", "network.io.direction"),
        ("5 s", "agent"),
    ),
    "hw.errors": (
        "counter",
        "{error}",
        "Memory errors of a GPU, corrected or not.",
        ("error.type", "hw.id", "hw.type"),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.status": (
        "updowncounter",
        "1",
        "1 for the state that a GPU is in, 0 for the other: ok, failed.",
        (
            "hw.driver_version",
            "hw.id",
            "hw.name",
            "hw.state",
            "hw.type",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.temperature": (
        "gauge",
        "Cel",
        "Temperature of a GPU or of its memory.",
        (
            "hw.id",
            "hw.sensor_location",
            "hw.type",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.temperature.limit": (
        "gauge",
        "Cel",
        "Temperature at which a GPU is clocked down or switched off.",
        (
            "hw.id",
            "hw.limit_type",
            "hw.sensor_location",
            "hw.type",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.power": (
        "gauge",
        "W",
        "Power that a GPU takes.",
        (
            "hw.id",
            "hw.type",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.energy": (
        "counter",
        "J",
        "Energy that a GPU has taken.",
        (
            "hw.id",
            "hw.type",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.gpu.utilization": (
        "gauge",
        "1",
        "Part of the time in which a GPU did something.",
        (
            "hw.gpu.task",
            "hw.id",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.gpu.memory.utilization": (
        "gauge",
        "1",
        "Part of the time in which the memory of a GPU was read or written.",
        ("hw.id",),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.gpu.memory.usage": (
        "updowncounter",
        "By",
        "Memory of a GPU that is taken.",
        ("hw.id",),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.gpu.memory.limit": (
        "updowncounter",
        "By",
        "Memory that a GPU has.",
        ("hw.id",),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.gpu.io": (
        "counter",
        "By",
        "Bytes that passed the PCI Express link of a GPU.",
        (
            "hw.id",
            "network.io.direction",
        ),
        ("5 s", "agent, an NVIDIA driver"),
    ),
    "hw.network.up": (
        "updowncounter",
        "1",
        "1 for a network interface or RDMA port that can send, 0 for one that cannot.",
        ("hw.id",),
        ("5 s", "agent"),
    ),
    "hw.network.bandwidth.limit": (
        "updowncounter",
        "By/s",
        "Speed of the link of a network interface or RDMA port.",
        ("hw.id",),
        ("10 s", "agent"),
    ),
    "hw.network.io": (
        "counter",
        "By",
        "Bytes that passed each RDMA port.",
        ("hw.id", "network.io.direction"),
        ("5 s or slower", "agent, an RDMA device"),
    ),
    "hw.network.packets": (
        "counter",
        "{packet}",
        "Packets that passed each RDMA port.",
        ("hw.id", "network.io.direction"),
        ("5 s or slower", "agent, an RDMA device"),
    ),
}

HEAD = '''"""Every name on the wire. Generated from `registry/*.yaml` by `make registry`.

Do not edit. Standard library only: everyone may import this. `ATTRIBUTES`, `SPANS`, `EVENTS` and
`METRICS` are the registry as data; the tests hold real telemetry against them, so that no name leaves a
producer that is not defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rootwalk.instrumentation.text_enum import StrEnum

'''

TYPES = '''

@dataclass(frozen=True, slots=True)
class SpanDefinition:
    """A span that a producer may send: its attributes, and those of them that must be there."""

    attributes: frozenset[str]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class EventDefinition:
    """A log event that may be sent: its attributes, and those of them that must be there."""

    attributes: frozenset[str]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric that a producer may send: instrument, UCUM unit, what it tells, attributes."""

    instrument: str
    unit: str
    brief: str
    attributes: frozenset[str]
    required: frozenset[str]

'''


def load(name: str) -> dict[str, Any]:
    """Return one registry file as plain data."""
    loaded: dict[str, Any] = yaml.safe_load((REGISTRY / name).read_text(encoding="utf-8"))
    return loaded


def list_metrics(signals: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all metrics in the registry's form, core ones last."""
    core = [
        {
            "name": name,
            "instrument": instrument,
            "unit": unit,
            "brief": brief,
            "attributes": [{"ref": key, "requirement_level": "required"} for key in attributes],
        }
        for name, (instrument, unit, brief, attributes, _) in CORE_METRICS.items()
    ]
    return [*signals["metrics"], *core]


def constant(name: str) -> str:
    """Return the Python constant's name for a dotted name."""
    return name.replace(".", "_").upper()


def comment(text: str) -> str:
    """Return a comment, wrapped."""
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, LINE_LENGTH - 2))


def frozen(names: list[str]) -> str:
    """Return source for a frozenset of strings, one a line when long."""
    if not names:
        return "frozenset()"
    body = ", ".join(f'"{name}"' for name in sorted(names))
    if len(body) < 60:
        return f"frozenset({{{body}}})"
    lines = "".join(f'\n                "{name}",' for name in sorted(names))
    return f"frozenset(\n            {{{lines}\n            }}\n        )"


def definition_source(kind: str, head: str, refs: list[dict[str, str]]) -> str:
    """Return source for one definition."""
    names = [ref["ref"] for ref in refs]
    required = [ref["ref"] for ref in refs if ref["requirement_level"] == "required"]
    return (
        f"{kind}(\n{head}        attributes={frozen(names)},\n"
        f"        required={frozen(required)},\n    )"
    )


def generate() -> str:
    """Return the source of `semconv.py`."""
    manifest, attributes, signals = (
        load(name) for name in ("manifest.yaml", "attributes.yaml", "signals.yaml")
    )
    out = [HEAD, f'SCHEMA_URL: Final = "{manifest["schema_url"]}"\n\n']
    enums: list[str] = []
    types: dict[str, str] = dict(CORE_ATTRIBUTES)
    for attribute in attributes["attributes"]:
        key = attribute["key"]
        kind = attribute["type"]
        out.append(f'{comment(attribute["brief"])}{constant(key)}: Final = "{key}"\n')
        if isinstance(kind, dict):
            name = "".join(part.title().replace("_", "") for part in key.split("."))
            members = "".join(
                f'    {member["id"].upper()} = "{member["value"]}"\n' for member in kind["members"]
            )
            enums.append(f'\n\nclass {name}(StrEnum):\n    """{attribute["brief"]}"""\n\n{members}')
            kind = "string"
        types[key] = kind
    out.append("\n# Core conventions, used unchanged.\n")
    out.extend(f'{constant(key)}: Final = "{key}"\n' for key in CORE_ATTRIBUTES)
    out.append("\n# Event names.\n")
    for event in signals["events"]:
        out.append(comment(event["brief"]))
        out.append(f'EVENT_{constant(event["name"])}: Final = "{event["name"]}"\n')
    out.append("\n# Metric names.\n")
    for metric in list_metrics(signals):
        out.append(comment(metric["brief"]))
        out.append(f'METRIC_{constant(metric["name"])}: Final = "{metric["name"]}"\n')
    out.extend(enums)
    out.append(TYPES)
    out.append("\nATTRIBUTES: Final[dict[str, str]] = {\n")
    out.extend(f'    "{key}": "{kind}",\n' for key, kind in sorted(types.items()))
    out.append("}\n\nSPANS: Final[dict[str, SpanDefinition]] = {\n")
    for span in signals["spans"]:
        source = definition_source("SpanDefinition", "", span["attributes"])
        out.append(f'    "{span["type"]}": {source},\n')
    out.append("}\n\nEVENTS: Final[dict[str, EventDefinition]] = {\n")
    for event in signals["events"]:
        source = definition_source("EventDefinition", "", event["attributes"])
        out.append(f'    "{event["name"]}": {source},\n')
    out.append("}\n\nMETRICS: Final[dict[str, MetricDefinition]] = {\n")
    for metric in list_metrics(signals):
        head = "".join(
            f'        {field}="{metric[field]}",\n' for field in ("instrument", "unit", "brief")
        )
        source = definition_source("MetricDefinition", head, metric.get("attributes", []))
        out.append(f'    "{metric["name"]}": {source},\n')
    out.append("}\n")
    return "".join(out)


def format_source(source: str) -> str:
    """Return Python source as `ruff format` writes it."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


def span_name(span: dict[str, Any]) -> str:
    """Return the name that a span of this type carries, for the table."""
    return {
        "training.phase": "`data_load`, `forward`, `backward`, `optimizer`, `checkpoint`",
        "collective": "`collective.<operation>`",
        "stall": "`stall.<state>`",
    }.get(span["type"], f"`{span['type']}`")


def generate_table() -> str:
    """Return the table of signals: signal, kind, what it tells, unit, when it is sent, its needs.

    Raises:
        KeyError: If the registry has a signal that `SENT` does not know.
    """
    signals = load("signals.yaml")
    lines = [
        "| signal | kind | what it tells | unit | sent | needs |",
        "|---|---|---|---|---|---|",
    ]
    for span in signals["spans"]:
        sent, needs = SENT[span["type"]]
        lines.append(f"| {span_name(span)} | span | {span['brief']} | s | {sent} | {needs} |")
    for event in signals["events"]:
        sent, needs = SENT[event["name"]]
        lines.append(f"| `{event['name']}` | event | {event['brief']} | | {sent} | {needs} |")
    for metric in list_metrics(signals):
        core = CORE_METRICS.get(metric["name"])
        sent, needs = core[4] if core is not None else SENT[metric["name"]]
        kind, unit = metric["instrument"], metric["unit"]
        lines.append(
            f"| `{metric['name']}` | {kind} | {metric['brief']} | {unit} | {sent} | {needs} |"
        )
    return "\n".join(lines) + "\n"


def generate_sensor_table() -> str:
    """Return the table of what is read: sensor, what it tells, needs, cost, how it is tested.

    Raises:
        ValueError: If a test that it names is not there.
    """
    lines = ["| sensor | what it tells | needs | cost | tested |", "|---|---|---|---|---|"]
    for one in load("sensors.yaml")["sensors"]:
        lost = [path for path in one["tests"] if not (ROOT / path).is_file()]
        if lost:
            raise ValueError(f"cannot tell how {one['sensor']} is tested: {lost} is not there")
        cells = (f"`{one['sensor']}`", *(one[key] for key in ("tells", "needs", "cost", "tested")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write both files, or with ``--check`` compare them and return 1 when one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    arguments = parser.parse_args()
    documents = Documents("make registry")
    documents.place("signals", generate_table())
    documents.place("sensors", generate_sensor_table())
    is_stale = documents.settle(check=arguments.check) == 1
    source = format_source(generate())
    if TARGET.read_text(encoding="utf-8") != source:
        is_stale = True
        if arguments.check:
            sys.stderr.write(f"{TARGET.relative_to(ROOT)} is stale: run `make registry`\n")
        else:
            TARGET.write_text(source, encoding="utf-8")
    return int(is_stale and arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())

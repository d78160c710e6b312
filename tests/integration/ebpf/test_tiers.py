"""The real commands where something is missing: no kernel types, no libbpf, no privilege, a pid namespace, no hook.

Readers that lack something say what, the scheduler is read from /proc instead, and a job is watched all the same.
A user without privileges is a root without capabilities here: to the kernel's BPF that is the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.backends import VARIABLE
from rootwalk.ebpf.bcc_backend import BCC
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.ebpf.targets import CORE
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.shared_ring import ring_directory
from support import fake_rank, workloads
from support.bpf_programs import skip_without
from support.command import query

STEPS = 15
HIDE_TYPES = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
# What told the times of steps, and why it was not the kernel's program.
TOLD = """
SELECT (SELECT list(DISTINCT sensor) FROM steps WHERE sensor NOT NULL) AS readers,
       (SELECT reason FROM sensors WHERE sensor = 'sched') AS reason
"""
RANK = {"RANK": "0", "WORLD_SIZE": "1"}
NO_LIBBPF = {"ROOTWALK_LIBBPF": "nowhere.so"}


@dataclass(frozen=True, slots=True)
class Tier:
    """What is missing.

    Attributes:
        reason: What the readers that use BPF say; None when they work.
        backend: What the scheduler is read with.
        before: Words before a command that take it away.
        environment: Variables that take it away.
    """

    reason: Reason | None
    backend: str = "proc"
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run rootwalk there to its end."""
        return subprocess.run(
            [*self.before, sys.executable, "-m", "rootwalk.graph", *arguments],
            cwd=cwd,
            env={**os.environ, **RANK, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            check=False,
        )


def keeping(*capabilities: str) -> tuple[str, ...]:
    kept = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ("setpriv", f"--inh-caps={kept}", f"--bounding-set={kept}")


TIERS = {
    "no types": Tier(Reason.NO_BTF, before=("unshare", "--mount", "sh", "-c", HIDE_TYPES, "sh")),
    "no libbpf": Tier(Reason.NO_LIBBPF, environment={**NO_LIBBPF, VARIABLE: "core"}),
    "BCC for libbpf": Tier(None, "bcc", environment=NO_LIBBPF),
    "BCC with two capabilities": Tier(
        None, "bcc", keeping("bpf", "perfmon"), environment=NO_LIBBPF
    ),
    "no privilege": Tier(Reason.NO_PRIVILEGE, before=keeping()),
    "two capabilities": Tier(None, "core", keeping("bpf", "perfmon")),
    "pid namespace": Tier(
        Reason.PID_NAMESPACE, before=("unshare", "--pid", "--fork", "--mount-proc")
    ),
}


def require(tier: Tier) -> None:
    """Skip where this user cannot make such a place, or where even everything is not enough."""
    nothing = [*tier.before, sys.executable, "-c", ""]
    probe = subprocess.run(nothing, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"namespaces: needs root: {probe.stderr.strip()}")
    skip_without(BCC if tier.backend == "bcc" else CORE)


@pytest.mark.bpf
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("tier", TIERS.values(), ids=TIERS.keys())
def test_what_is_missing_is_said_and_the_rest_goes_on(tier: Tier, tmp_path: Path) -> None:
    require(tier)
    checked = tier.run("check", "--json", cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    sensors = {entry["sensor"]: entry for entry in json.loads(checked.stdout)["sensors"]}
    sched = sensors.pop("sched")
    assert (sched["backend"], sched["reason"]) == (tier.backend, tier.reason)
    assert sched["status"] == ("available" if tier.reason is None else "degraded")
    for sensor in sensors.values():
        assert (sensor["status"] == "available") == (sensor["reason"] is None), sensor
        if tier.backend != "core":
            assert sensor["backend"] != "core", sensor

    store = tmp_path / "s.duckdb"
    job = [sys.executable, fake_rank.__file__, str(ring_directory()), str(STEPS)]
    watched = tier.run(
        "run", "--store", str(store), "--", *job, str(workloads.last_cpu()), cwd=tmp_path
    )
    assert watched.returncode == 0, watched.stderr
    assert "Traceback" not in watched.stderr
    told = query(store, TOLD, cwd=tmp_path)
    assert told == [{"readers": [tier.backend], "reason": tier.reason}]


@pytest.mark.bpf
def test_program_whose_hook_the_kernel_lacks_says_so(tmp_path: Path) -> None:
    require(Tier(None))
    import rootwalk.ebpf.programs

    folder = Path(next(iter(rootwalk.ebpf.programs.__path__)))
    program = (folder / "targets.bpf.o").read_bytes()
    other = tmp_path / "other.bpf.o"
    other.write_bytes(program.replace(b"sched_process_fork", b"sched_process_spun"))
    with pytest.raises(UnavailableError, match="does not have") as caught:
        BpfObject(other)
    assert caught.value.reason == Reason.NO_HOOK

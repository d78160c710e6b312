"""Jobs through a real Collector, Jaeger and Prometheus, by the configurations of examples/collector.

    deployment       way of the telemetry
    from-rootwalk    job → Rootwalk (live detection) → Collector → Jaeger, Prometheus, file → `import otlp`
    beside-rootwalk  job → Collector → Rootwalk, Jaeger and Prometheus
    shard-by-job     two jobs → Collector → one of two Rootwalks each
    to-files         job → Collector → file → `import otlp`
    profiles         a demo run with stacks → Rootwalk → Collector → another Rootwalk
    instrument       a program under `opentelemetry-instrument` → Rootwalk
    away             as beside-rootwalk, while nobody is there
    large-step       steps of 64 ranks → Collector → Jaeger: a trace that is whole, and answered at once
    dashboards       every metric of the registry, stand-ins → Collector → Prometheus; every query of examples/grafana
    real-job         as from-rootwalk, with a real job of four ranks and a real fault under `rootwalk run`

What the back ends have is asked through their own query APIs and held against what was sent, and the verdict of every
store against that of the same requests without anything between. Prints a line for each claim and returns 1 when one
does not hold.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import claims  # noqa: E402
from backend_programs import PROGRAMS, build_program  # noqa: E402
from deployments import DEPLOYMENTS, OTHERS, Servers  # noqa: E402
from servers import EXAMPLES, GATES, running_jaeger, running_prometheus  # noqa: E402


def judge_configuration(path: Path) -> tuple[int, str]:
    """Return the exit code of the Collector's own judgement of a configuration as it stands, and what it said."""
    done = subprocess.run(
        [str(build_program("collector")), "validate", GATES, "--config", str(path)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def validate_examples(servers: Servers) -> Iterator[claims.Claim]:
    """Let the Collector judge every example, as it stands."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        yield claims.Claim(f"{path.name} is valid", (0, ""), judge_configuration(path))
    broken = servers.folder / "broken.yaml"
    text = (EXAMPLES / "to-files.yaml").read_text(encoding="utf-8")
    broken.write_text(text.replace("max_backups", "max_back_ups"), encoding="utf-8")
    yield claims.Claim(
        "a misspelt option is not", True, "max_back_ups" in judge_configuration(broken)[1]
    )
    yield claims.Claim(
        "every example is run",
        sorted(DEPLOYMENTS),
        sorted(path.stem for path in EXAMPLES.glob("*.yaml")),
    )


def try_twice(
    name: str, claim: Callable[[Servers], Iterator[claims.Claim]], servers: Servers
) -> bool:
    """Return whether all claims hold; a real job that others kept from the CPUs is trained once more."""
    for attempt in range(2 if name == "real-job" else 1):
        if attempt:
            print(f"{name:16} once more", flush=True)
        if all(one.holds for one in claims.check(name, claim(servers))):
            return True
    return False


def main() -> int:
    """Build, run what the arguments ask for, and return 0 when every claim holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "deployments",
        nargs="*",
        default=[],
        help=f"of {', '.join([*DEPLOYMENTS, *OTHERS])}; all of them",
    )
    parser.add_argument("--build-only", action="store_true", help="build the back ends and stop")
    arguments = parser.parse_args()
    every = DEPLOYMENTS | OTHERS
    if unknown := sorted(set(arguments.deployments) - every.keys()):
        parser.error(f"saw {', '.join(unknown)}; needs one of {', '.join(every)}")
    if shutil.which("go") is None:
        raise SystemExit("cannot build the back ends: saw no go; needs Go 1.26 or newer")
    for program in PROGRAMS:
        began_s = time.monotonic()
        build_program(program)
        print(f"{program:16} built in {time.monotonic() - began_s:.0f} s", flush=True)
    if arguments.build_only:
        return 0
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rootwalk-backends-") as name:
        folder = Path(name)
        with running_jaeger(folder) as jaeger, running_prometheus(folder) as prometheus:
            servers = Servers(jaeger, prometheus, folder)
            chosen = {name: every[name] for name in arguments.deployments or every}
            work = {"examples": validate_examples} | chosen
            results = [try_twice(name, claim, servers) for name, claim in work.items()]
    print(f"{sum(results)} of {len(results)} in order after {time.monotonic() - began_s:.0f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Train a little in another environment, under `rootwalk run --endpoint`, and check what arrives here.

    python .ci/check_training_image.py ENVIRONMENT

ENVIRONMENT holds Rootwalk's base install and nothing of the host side. It has no PyTorch of its own (2.5 GB): this
environment's is linked into it, and must be for the same Python. The receiver is this environment's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

RANKS, STEPS = 2, 40
SMALL = ("--width=32", "--layers=1", "--heads=2", "--window=32", "--batch=2")
TOLD = ("opentelemetry-sdk", "opentelemetry-instrumentation", "protobuf", "requests")
READY_S, STOP_S = 60.0, 60.0
QUESTIONS = {
    "steps": "SELECT rank, count(*) AS n FROM steps WHERE is_complete GROUP BY rank ORDER BY rank",
    "metrics": "SELECT DISTINCT name FROM metrics WHERE name = 'rootwalk.sensor.state'",
}


def list_needed(name: str, seen: set[str]) -> set[str]:
    """Add a distribution and all that it requires here to the set, and return it."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    try:
        requirements = metadata.requires(key) or []
    except metadata.PackageNotFoundError:
        return seen  # for another platform, or an extra
    seen.add(key)
    for requirement in requirements:
        found = re.match(r"[A-Za-z0-9._-]+", requirement)
        if found and "extra ==" not in requirement:
            list_needed(found[0], seen)
    return seen


def link_torch(environment: Path) -> None:
    """Make this environment's PyTorch importable in another, behind everything that is installed there."""
    folder = environment / "borrowed"
    folder.mkdir()
    for name in sorted(list_needed("torch", set())):
        for file in metadata.files(name) or []:
            top = file.parts[0]
            source = Path(str(metadata.distribution(name).locate_file(top))).resolve()
            if top != ".." and source.exists() and not (folder / top).is_symlink():
                (folder / top).symlink_to(source)
    (site,) = environment.glob("lib/python3.*/site-packages")
    (site / "borrowed.pth").write_text(f"{folder}\n", encoding="utf-8")


@contextlib.contextmanager
def running_receiver(store: Path) -> Iterator[str]:
    """Run a receiver for the length of a block; gives its base URL."""
    ready = store.with_suffix(".ready")
    command = [sys.executable, "-m", "rootwalk.graph", "receive", "--store", str(store)]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"cannot start a receiver: not ready within {READY_S:g} s")
            time.sleep(0.05)
        yield f"http://{json.loads(ready.read_text(encoding='utf-8'))['http']}"
    finally:
        process.terminate()
        process.wait(STOP_S)


def train(environment: Path, endpoint: str) -> None:
    """Run the example in the environment, under its own `rootwalk run`."""
    binaries = environment / "bin"
    (script,) = environment.glob("lib/python3.*/site-packages/rootwalk/examples/train_ddp.py")
    job = [str(binaries / "python"), "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    job += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(script)]
    command = [str(binaries / "rootwalk"), "run", "--endpoint", endpoint, "--job", "image", "--"]
    # Nothing of this environment but PyTorch may help.
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    surroundings["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [*command, *job, f"--steps={STEPS}", *SMALL],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(f"cannot train in {environment}: saw exit code {done.returncode}; needs 0")
    if "Traceback" in done.stdout:
        sys.exit(f"cannot train in {environment}: saw a traceback, above; needs none")


def ask(store: Path, question: str) -> object:
    """Return the rows of one query."""
    command = [sys.executable, "-m", "rootwalk.graph", "sql", str(store), question, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> int:
    """Train there, and return 0 when every step and the sensors' states have arrived."""
    environment = Path(sys.argv[1]).resolve()
    versions = f"from importlib.metadata import version\nfor n in {TOLD}: print(n, version(n))"
    subprocess.run([str(environment / "bin" / "python"), "-c", versions], check=True)
    link_torch(environment)
    wanted = {
        "steps": [{"rank": rank, "n": STEPS} for rank in range(RANKS)],
        "metrics": [{"name": "rootwalk.sensor.state"}],
    }
    with tempfile.TemporaryDirectory(prefix="rootwalk-image-") as folder:
        store = Path(folder) / "image.duckdb"
        with running_receiver(store) as endpoint:
            train(environment, endpoint)
        seen = {name: ask(store, question) for name, question in QUESTIONS.items()}
    if seen != wanted:
        sys.exit(f"cannot use this install for training: saw {seen}; needs {wanted}")
    sys.stdout.write(f"{RANKS} ranks, {STEPS} steps each, all stored\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

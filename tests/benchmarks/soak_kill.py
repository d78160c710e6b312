"""Kill a receiver under load, again and again: nothing acknowledged may be missing, no span may be there twice.

    python tests/benchmarks/soak_kill.py --kills 100

Senders of all four signals; every request of spans is sent twice. Exit code 1 when something is missing or doubled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.kill_load import kill_under_load


def main() -> int:
    """Print a line every ten kills, then the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="kills (default 100)")
    parser.add_argument("--seed", type=int, default=5, help="of the moments to kill at (default 5)")
    arguments = parser.parse_args()

    def report(number: int, acknowledged: int) -> None:
        if number % 10 == 0:
            print(f"{number} kills, {acknowledged:,} records acknowledged", flush=True)

    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "soak.duckdb"
        result = kill_under_load(store, arguments.kills, arguments.seed, report)
    for signal, count in result.acknowledged.items():
        print(f"{signal}: acknowledged {count:,}, missing {result.missing[signal]}")
    print(f"spans stored more than once: {result.doubled}")
    return 1 if result.doubled or any(result.missing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

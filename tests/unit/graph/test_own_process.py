"""What a process knows about itself."""

import subprocess
import sys

LARGE_BYTES = 300_000_000
PROGRAM = "from rootwalk.graph.own_process import peak_resident_bytes; print(peak_resident_bytes())"


def test_the_peak_is_that_of_this_program_not_of_its_large_parent() -> None:
    ballast = b"x" * LARGE_BYTES

    told = int(
        subprocess.run(
            [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
        ).stdout
    )

    assert len(ballast) == LARGE_BYTES
    assert 1_000_000 < told < LARGE_BYTES / 2


def test_the_peak_holds_what_was_given_back() -> None:
    program = f"x = b'x' * {LARGE_BYTES}; del x; {PROGRAM}"

    told = int(
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        ).stdout
    )

    assert told > LARGE_BYTES

"""A connection that is no part of a job: one end sends some megabytes a second, the other reads them.

other_flow.py send|receive ADDRESS PORT
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

CHUNK = bytes(65_536)
PAUSE_S = 0.02


def send(address: tuple[str, int]) -> None:
    """Connect, as soon as somebody listens, and send until the other end is gone."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            connection = socket.create_connection(address)
            break
        time.sleep(PAUSE_S)
    with connection:
        while True:
            connection.sendall(CHUNK)
            time.sleep(PAUSE_S)


def receive(address: tuple[str, int]) -> None:
    """Listen, and read what comes."""
    with socket.create_server(address) as listener:
        connection, _ = listener.accept()
        with connection:
            # Not woken for every packet: that would take a rank's core now and then.
            while connection.recv(16 * len(CHUNK)):
                time.sleep(PAUSE_S)


def main() -> None:
    role, host, port = sys.argv[1:]
    with contextlib.suppress(OSError):
        (send if role == "send" else receive)((host, int(port)))


if __name__ == "__main__":
    main()

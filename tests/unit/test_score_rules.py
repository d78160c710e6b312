"""The simple rules beside the score, on cases small enough to see what each must say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from support.dump_rules import DUMP_RULES
from support.flight_dumps import FlightJob
from support.kineto_rules import PROFILE_RULES, Piece, read_pieces
from support.profiles import MadeProfile, document


def test_rules_on_a_hang_in_which_one_rank_has_not_called() -> None:
    # Ranks 0, 1 and 3 call in this order; rank 2 does not.
    job = FlightJob(4, {"0": range(4)})
    job.call_all((0, 1, 3), "0")
    said = {name: rule(job.records()) for name, rule in DUMP_RULES.items()}
    assert said == {
        "slowest rank": 0,
        "longest span": 0,
        "shortest collective": 3,
        # One, one, none, one: there is no spread to compare with.
        "N-sigma": None,
        "PageRank": 2,
    }


def test_rules_on_nothing_unfinished_say_nothing() -> None:
    records = FlightJob(4, {"0": range(4)}).records()
    assert {rule(records) for rule in DUMP_RULES.values()} == {None}


def test_rules_on_a_profile_name_the_part_that_is_longest_or_deviates() -> None:
    pieces = [
        Piece("device", step, seconds) for step, seconds in enumerate((0.2, 0.21, 0.2, 0.19, 0.21))
    ]
    # One wait is longer than any kernel; in all the device takes longer.
    pieces += [Piece("input", step, 0.01 + 0.29 * (step == 3)) for step in range(5)]
    pieces += [Piece("input", step, 0.001 * step) for step in range(5)]
    said = {name: rule(pieces) for name, rule in PROFILE_RULES.items()}
    assert said == {"slowest rank": "device", "longest span": "input", "N-sigma": "input"}
    assert {rule([]) for rule in PROFILE_RULES.values()} == {None}


def test_pieces_of_a_profile_are_in_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "profile.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document(MadeProfile(steps=3))).encode()))
    loads = [piece for piece in read_pieces(path) if piece.part == "input"]
    assert [(piece.step, round(piece.seconds, 6)) for piece in loads] == [
        (0, 0.005),
        (1, 0.005),
        (2, 0.005),
    ]

"""Jobs that hang: what stops them, and what has to be said within 30 s."""

from __future__ import annotations

from gauntlet.live.case import HANG, PLAIN, Expected, LiveCase
from gauntlet.live.outside import by, stop_rank
from gauntlet.live.places import c_library, little_memory, silent_file, way_that_drops

ANY_STEP_S = (0.04, 0.2, 1.0)
ANY_RANKS = (2, 4)
NETWORK = ("UNKNOWN_NET", "NET_LOSS", "NET_FLAP", "NET_CONGESTION")
STORAGE = ("DATALOADER_IO", "STORAGE_SLOW", "CKPT_IO")
ENDED = ("RANK_GONE", "RANK_KILLED", "RANK_CRASHED", "OOM_KILL")


def in_rank(text: str, fault: str, function: str, *reasons: str, **more: object) -> LiveCase:
    """Return a case whose rank stays in a function of its own.

    Args:
        text: What happens.
        fault: A name of `planted.FAULTS`.
        function: Where the rank stays.
        reasons: Codes that are right besides `NOT_JOINED` with the function.
        more: Of `LiveCase`.
    """
    options: dict[str, object] = {"step_s": ANY_STEP_S, "ranks": ANY_RANKS} | more
    expected = Expected(rank=1, reasons=reasons, function=function)
    return LiveCase(text, HANG, expected, fault, **options)  # type: ignore[arg-type]


HANGS: dict[str, LiveCase] = {
    "hang_sleep": in_rank("a rank sleeps for ever", "sleep", "sleep_for_ever"),
    "hang_stopped": LiveCase(
        "a rank is stopped by SIGSTOP",
        HANG,
        Expected(rank=1, reasons=("PROCESS_SUSPENDED",)),
        step_s=ANY_STEP_S,
        ranks=ANY_RANKS,
        given=by(stop_rank),
    ),
    "hang_lock": in_rank("a rank takes a Python lock twice", "lock", "take_lock_twice"),
    "hang_spin_python": in_rank(
        "a rank is in an endless loop in Python, which holds the GIL",
        *("spin_python", "spin_in_python"),
        needs_cpu=True,
    ),
    "hang_spin_c": in_rank(
        "a rank is in an endless loop in C, which does not hold the GIL",
        *("spin_c", "spin_in_c"),
        given=c_library,
        needs_cpu=True,
    ),
    "hang_input": in_rank(
        "a rank asks a question on a standard input that never answers",
        *("input", "ask_user"),
        keeps_stdin=True,
    ),
    "hang_debugger": in_rank(
        "a rank has met a breakpoint", "debugger", "stop_in_debugger", keeps_stdin=True
    ),
    "hang_gone": LiveCase(
        "a rank ends by os._exit(0), and a child of it keeps its connections open",
        HANG,
        Expected(rank=1, reasons=ENDED, kinds=("hang", None)),
        fault="gone",
        ranks=ANY_RANKS,
        launchers=(PLAIN,),
    ),
    "hang_fuse": in_rank(
        "a rank reads from a file system in user space that no longer answers",
        *("fuse", "read_shard"),
        *STORAGE,
        given=silent_file,
    ),
    "hang_loader_lock": in_rank(
        "a forked loader worker waits for a lock that it inherited",
        *("loader_lock", "wait_for_loader"),
        "FORK_DEADLOCK",
    ),
    "hang_dead_worker": in_rank(
        "a loader worker is killed while it holds a lock that the rank wants",
        *("dead_worker", "lock_of_dead_worker"),
        "FORK_DEADLOCK",
    ),
    "hang_leaves": in_rank(
        "a rank has fewer batches, and waits for a file after its loop while the others are in all_reduce",
        *("leaves", "write_results"),
        fault_step=100,
        loop="by_hand",
        step_s=(0.04, 0.2),
    ),
    "hang_leaves_for_barrier": in_rank(
        "a rank has fewer batches, and waits in a barrier after its loop",
        *("leaves_for_barrier", "meet_at_barrier"),
        "COLLECTIVE_MISMATCH",
        ranks=(4,),
    ),
    "hang_other_collective": in_rank(
        "a rank calls a broadcast where the others call an all_reduce",
        *("other_collective", "other_collective"),
        "COLLECTIVE_MISMATCH",
        ranks=(4,),
    ),
    "hang_crossed": LiveCase(
        "a rank uses two groups in the opposite order",
        HANG,
        Expected(rank=1, reasons=("COLLECTIVE_DEADLOCK",)),
        fault="crossed",
        ranks=(4,),
    ),
    "hang_dropped": LiveCase(
        "the way between two networks drops every packet: all have called, none ends",
        HANG,
        Expected(rank=None, reasons=NETWORK),
        launchers=(PLAIN,),
        given=way_that_drops,
    ),
    "hang_never_joins": in_rank(
        "a rank never comes to init_process_group",
        *("never_joins", "sleep_for_ever"),
        is_before_training=True,
        ranks=ANY_RANKS,
    ),
    "hang_out_of_memory": LiveCase(
        "a rank is killed for memory, and a child of it keeps its connections open",
        HANG,
        Expected(rank=1, reasons=ENDED, kinds=("hang", None)),
        fault="memory_unnoticed",
        launchers=(PLAIN,),
        given=little_memory,
    ),
}

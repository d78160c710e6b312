"""Jobs that end badly, and jobs that only take long."""

from __future__ import annotations

from gauntlet.live.case import END, NEAR, PLAIN, TORCHRUN, Expected, LiveCase
from gauntlet.live.outside import (
    SUSPENDED_S,
    by,
    freeze_all,
    kill_launcher,
    kill_rank,
    press_ctrl_c,
    suspend_job,
)
from gauntlet.live.places import DOWNLOAD_S, little_memory, node_that_goes, slow_server

CRASHED, KILLED = ("RANK_CRASHED",), ("RANK_KILLED",)
ANY_RANKS = (2, 4)
# No step ends for so long, at least: what is written down at the end of the pause has its own delays.
NEARLY = 0.95
COMPILE_S, CHECKPOINT_S, EVALUATION_S = 60.0, 40.0, 45.0


def ends(
    text: str, reasons: tuple[str, ...], line: str, fault: str = "", **more: object
) -> LiveCase:
    """Return a case whose rank 1 ends first.

    Args:
        text: What happens.
        reasons: Codes that are right.
        line: What the first line of the text has to contain.
        fault: A name of `planted.FAULTS`.
        more: Of `LiveCase`.
    """
    expected = Expected(rank=1, reasons=reasons, kinds=("hang", "slow", None), line=line)
    options: dict[str, object] = {"ranks": ANY_RANKS, "ends_itself": True} | more
    return LiveCase(text, END, expected, fault, **options)  # type: ignore[arg-type]


ENDS: dict[str, LiveCase] = {
    "end_exception": ends("a rank raises an exception", CRASHED, "rank 1.*ValueError", "exception"),
    "end_exit_code": ends(
        "a rank calls sys.exit(3)",
        CRASHED,
        r"rank 1.*\b3\b",
        "exit",
        settings={"code": "3"},
    ),
    "end_exit_at_once": ends(
        "a rank calls os._exit(7)",
        CRASHED,
        r"rank 1.*\b7\b",
        "exit_at_once",
        settings={"code": "7"},
    ),
    "end_killed": ends(
        "a rank is killed by SIGKILL", KILLED, "rank 1.*SIGKILL", given=by(kill_rank)
    ),
    "end_segfault": ends(
        "a rank reads memory that is not there",
        (*CRASHED, *KILLED),
        "rank 1.*SIGSEGV",
        "segfault",
    ),
    "end_out_of_memory": ends(
        "a rank is killed for memory",
        ("OOM_KILL",),
        "rank 1.*memory",
        "memory",
        given=little_memory,
    ),
    "end_several": ends(
        "a rank raises an exception, and the others do by themselves a second later",
        CRASHED,
        "rank 1.*ValueError",
        "several",
        ranks=(4,),
        launchers=(PLAIN,),
    ),
    "end_launcher_killed": LiveCase(
        "the launcher is killed by SIGKILL",
        END,
        Expected(
            rank=None,
            kinds=(None, "hang", "slow"),
            line="launcher|command.*(SIGKILL|137)",
            is_finding=False,
        ),
        given=by(kill_launcher),
        ends_itself=True,
    ),
    "end_node_gone": ends(
        "a node is gone: its network and every process on it",
        ("RANK_GONE", "RANK_KILLED", "UNKNOWN_NET"),
        "rank 1",
        launchers=(PLAIN,),
        ranks=(2,),
        given=node_that_goes,
        ends_itself=False,
    ),
    "end_missing_module": LiveCase(
        "the script imports a module that is not installed",
        END,
        Expected(line="before its first step", is_finding=False, tolerated=("RANK_CRASHED",)),
        fault="missing_module",
        fault_ranks=(),
        ends_itself=True,
        is_before_training=True,
    ),
    "end_wrong_script": LiveCase(
        "the script does not exist",
        END,
        Expected(line="before its first step", is_finding=False, tolerated=("RANK_CRASHED",)),
        script="no_such_script.py",
        ends_itself=True,
        is_before_training=True,
    ),
    "end_ctrl_c": LiveCase(
        "the user presses Ctrl-C",
        END,
        Expected(is_finding=False),
        given=by(press_ctrl_c),
        ends_itself=True,
    ),
}


def lasts(text: str, fault: str, seconds: float, **more: object) -> LiveCase:
    """Return a near miss in which no step ends for so long, and which goes on and ends well.

    Args:
        text: What happens.
        fault: A name of `planted.FAULTS`; empty where it comes from outside.
        seconds: How long it takes.
        more: Of `LiveCase`.
    """
    options: dict[str, object] = {
        "settings": {"seconds": str(seconds)},
        "lasts_s": NEARLY * seconds,
        "fault_step": 40,
        "steps": 60,
        "ends_itself": True,
    } | more
    return LiveCase(text, NEAR, Expected(is_finding=False), fault, **options)  # type: ignore[arg-type]


NEARS: dict[str, LiveCase] = {
    "near_compile": lasts(
        "the first step compiles for a minute on every rank",
        "compile",
        COMPILE_S,
        fault_ranks=(),
        fault_step=1,
        needs_cpu=True,
    ),
    "near_checkpoint_all": lasts(
        "every rank writes a checkpoint for 40 s", "checkpoint", CHECKPOINT_S, fault_ranks=()
    ),
    "near_checkpoint_one": lasts(
        "rank 0 writes a checkpoint for 40 s while the others wait",
        *("checkpoint", CHECKPOINT_S),
        fault_ranks=(0,),
        ranks=ANY_RANKS,
    ),
    "near_evaluation_all": lasts(
        "every rank evaluates for 45 s", "evaluation", EVALUATION_S, fault_ranks=()
    ),
    "near_evaluation_one": lasts(
        "rank 0 evaluates for 45 s while the others wait",
        *("evaluation", EVALUATION_S),
        fault_ranks=(0,),
        ranks=ANY_RANKS,
    ),
    "near_download_all": lasts(
        "every rank downloads for 40 s before init_process_group",
        *("download", DOWNLOAD_S),
        fault_ranks=(),
        given=slow_server,
        is_before_training=True,
    ),
    "near_download_one": lasts(
        "rank 0 downloads for 40 s while the others wait in a barrier, before the first step",
        *("download_one", DOWNLOAD_S),
        fault_ranks=(0,),
        given=slow_server,
        is_before_training=True,
    ),
    "near_suspended": lasts(
        "the whole job is stopped and goes on after 30 s", "", SUSPENDED_S, given=by(suspend_job)
    ),
    "near_machine_slept": lasts(
        "the whole job, `rootwalk run` and its helpers are stopped and go on after 30 s",
        *("", SUSPENDED_S),
        given=by(freeze_all),
        launchers=(TORCHRUN,),
    ),
}

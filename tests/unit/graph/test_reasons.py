"""Every reason code of the contract has a row that says how its rule is tested, and every row is true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from rootwalk.ebpf.host import cpu_time, nic_statistics, rdma_counters, vmstat
from rootwalk.ebpf.nccl_messages import find_transport
from rootwalk.ebpf.sensors import SENSOR_NAMES
from rootwalk.graph.counters.others import OTHERS, Of
from rootwalk.graph.counters.rule import ABSENT, CounterRule
from rootwalk.graph.counters.rules import COUNTER_RULES
from rootwalk.graph.counters.told import TOLD_SIGNALS
from rootwalk.graph.hangs.rules import HANG_RULES
from rootwalk.graph.operations.rules import OPERATION_RULES
from rootwalk.graph.reasons import RULES, WOULD_DECIDE, Reason
from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.instrumentation import semconv

ROOT = Path(__file__).parents[3]
NOT_GIVEN = "not given yet"
# NCCL's src/transport/net.cc: network, its number, memory of the GPU, buffers that connections share.
NCCL_OVER_NETWORKS = tuple(
    f"h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/0{memory}{shared}"
    for network, memories in (("Socket", ("",)), ("IB", ("", "/GDRDMA", "/GDRDMA(PCI)")))
    for memory in memories
    for shared in ("", "/Shared")
)
ROWS = yaml.safe_load((ROOT / "tests" / "reason_codes.yaml").read_text(encoding="utf-8"))["codes"]
GIVEN = [row for row in ROWS if row["tested"] != NOT_GIVEN]


def test_every_code_of_the_contract_has_one_row() -> None:
    assert [row["code"] for row in ROWS] == list(CONTRACT)


def test_what_is_given_is_what_this_version_can_give() -> None:
    assert {row["code"] for row in GIVEN} == set(Reason)


def test_every_given_code_has_one_rule() -> None:
    by_kind = (RULES, HANG_RULES, OPERATION_RULES)
    given = [code for rules in by_kind for code in rules]
    # One that recorded operations tell, and counters of a job that runs as well.
    given.remove(Reason.STAGE_IMBALANCE)
    # A lost GPU makes steps slow, or lets none end.
    given.remove(Reason.GPU_LOST)
    assert sorted(given) == sorted(Reason)


@pytest.mark.parametrize("code", list(Reason))
def test_rule_has_the_layer_and_the_owner_of_the_contract(code: Reason) -> None:
    rule = (RULES | OPERATION_RULES).get(code) or HANG_RULES[code]
    assert (rule.layer, rule.owner) == CONTRACT[code]


# What only other producers count.
FROM_OTHERS = {one.signal for one in OTHERS if one.of is Of.PROCESS}


@pytest.mark.parametrize("row", GIVEN, ids=lambda row: row["code"])
def test_tests_that_a_row_names_are_there(row: dict[str, str]) -> None:
    assert row.keys() == {"code", "tested", "fires", "silent"}
    assert row["fires"] != row["silent"]
    for name in (row["fires"], row["silent"]):
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        # a live test names the fault, and its reason elsewhere
        if row["tested"] == "generated":
            files = [ROOT / row["fires"].partition("::")[0]]
            files += (ROOT / "tests" / "support").glob("*_cases.py")
            assert any(row["code"] in file.read_text("utf-8") for file in files)


@pytest.mark.parametrize("rule", COUNTER_RULES, ids=lambda rule: rule.reason)
def test_sensor_of_a_counter_would_decide_its_reason(rule: CounterRule) -> None:
    for counter in rule.counters:
        assert rule.reason in WOULD_DECIDE[counter.sensor]
    assert rule.reason not in rule.excluded_by


@pytest.mark.parametrize("rule", COUNTER_RULES, ids=lambda rule: rule.reason)
def test_counters_are_what_the_readers_send(rule: CounterRule) -> None:
    for counter in rule.all_counters:
        assert counter.sensor in SENSOR_NAMES
        if counter.signal in semconv.EVENTS:
            continue
        if counter.signal in TOLD_SIGNALS:  # of spans
            assert (counter.sensor, counter.where, counter.device) == ("instrumentation", (), None)
            continue
        if counter.signal in FROM_OTHERS:
            assert (counter.where, counter.device, counter.is_of_rank) == ((), None, True)
            continue
        definition = semconv.METRICS[counter.signal]
        selections = (*counter.where, *counter.over)
        assert {key for key, _ in selections} <= definition.attributes
        assert counter.device is None or counter.device in definition.attributes
        known: dict[str, set[str]] = {
            semconv.TRAINING_NIC_EVENT: {*nic_statistics.EVENTS, "rx_missed_errors"},
            semconv.TRAINING_RDMA_EVENT: {name.partition("/")[2] for name in rdma_counters.EVENTS},
            semconv.CPU_MODE: set(cpu_time.MODES),
            semconv.TRAINING_TCP_PEER: set(semconv.TrainingTcpPeer),
            semconv.TRAINING_THREAD_ROLE: set(semconv.TrainingThreadRole),
            semconv.TRAINING_THREAD_STATE: set(semconv.TrainingThreadState),
            semconv.NETWORK_IO_DIRECTION: {"transmit", "receive"},
            semconv.SYSTEM_PAGING_DIRECTION: {direction for _, direction in vmstat.SWAPS},
            semconv.TRAINING_CGROUP_MEMORY_EVENT: set(semconv.TrainingCgroupMemoryEvent),
            semconv.TRAINING_NUMA_ALLOCATION: set(semconv.TrainingNumaAllocation),
            semconv.TRAINING_GPU_CLOCK: set(semconv.TrainingGpuClock),
            semconv.TRAINING_GPU_THROTTLE_REASON: set(semconv.TrainingGpuThrottleReason),
            semconv.TRAINING_CUDA_LAYER: set(semconv.TrainingCudaLayer),
            semconv.TRAINING_CUDA_CALL_KIND: set(semconv.TrainingCudaCallKind),
            semconv.TRAINING_CUDA_COPY_DIRECTION: {ABSENT, *semconv.TrainingCudaCopyDirection},
            semconv.TRAINING_NCCL_TRANSPORT: {
                find_transport(line) or "" for line in NCCL_OVER_NETWORKS
            },
            semconv.HW_TYPE: {"gpu"},
        }
        for key, values in selections:
            assert values <= known[key]

"""A router that sends most tokens to one expert."""

from gauntlet.case import RANK, Case, Truth
from gauntlet.faults.training import HotExpert
from gauntlet.workloads import MOE_SHALLOW

CASE = Case(
    text="a mixture of experts: the router sends 97 of 100 tokens to the expert of one rank",
    truth=Truth(RANK, ("EXPERT_IMBALANCE",), ("application",)),
    disturbance=HotExpert,
    looks_like="a slow core; more work of its own",
    workload=MOE_SHALLOW,
)

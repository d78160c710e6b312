"""Ask the counters of hosts, links and ranks about causes that the scheduler's records leave open.

    rules      which counters speak for which reason, as data; of GPUs `devices`
    points     the counters of the hosts in question, out of the store
    movement   how one of them moved in the slow steps, before them, and elsewhere
    formulas   what that can have cost, where physics says so
    refine     the edge and the evidence that say so, in the dependency graph
    weigh      how much that is worth, from the graph as the store gives it back

A counter is never called a cause without time overlap and dose. Source: method C6 and C7.
"""

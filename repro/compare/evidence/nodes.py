"""Pairs by the node that they ran on, in a pool: one mean for each, and a test of whether nodes differ in the ratio.

The level of a node cancels in a pair. A candidate that gains more on some nodes than on others does not: pairs of one
node then say little about other nodes. A verdict on the nodes of the run may count each pair. One on all nodes of their
class counts one mean for each node, whose test keeps its level whatever the nodes do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from repro import stats
from repro.compare.figures import Bounds, ByLoad, ByNode, NodeRatio, Pair, bounds
from repro.stats.interval import from_log, t_quantile
from repro.stats.random_effects import one_way
from repro.stats.replication import mean_log, two_sided
from repro.suite.design import LEAST_REPEATS
from repro.suite.model import Unit


def grouped(pairs: Sequence[Pair], nodes: Mapping[int, str]) -> dict[str, list[Pair]]:
    """Return node -> its pairs, by name."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(nodes[pair.repeat], []).append(pair)
    return dict(sorted(found.items()))


def node_means(pairs: Sequence[Pair], nodes: Mapping[int, str]) -> tuple[Pair, ...]:
    """Return the geometric means of the pairs of each node, under the first of its repeats."""
    return tuple(Pair(repeat=found[0].repeat, candidate=geometric_mean(pair.candidate for pair in found),
                      baseline=geometric_mean(pair.baseline for pair in found))
                 for found in grouped(pairs, nodes).values())


def node_figures(pairs: Sequence[Pair], nodes: Mapping[int, str], unit: Unit) -> ByNode | None:
    """Return the ratio on each node, over nodes, and on another one; None: all pairs ran on one.

    The prediction is Student's interval of one more value of the means as they are, so it contains the error of a
    node's mean of about as many pairs.
    """
    found = grouped(pairs, nodes)
    if len(found) < 2:
        return None
    means = node_means(pairs, nodes)
    ratio, interval = stats.paired_ratio(*sides_of(means))
    error = stats.deviation(_logs(means)) * math.sqrt(1 + 1 / len(means))
    ends = [from_log(math.log(ratio) + sign * t_quantile(0.975, len(means) - 1) * error) for sign in (-1, 1)]
    test = stats.or_none(lambda: one_way([_logs(each) for each in found.values()]))
    return ByNode(
        unit=unit, nodes=tuple(_over_pairs(name, each) for name, each in found.items()),
        statistic=test.statistic if test else None, p=test.p if test else None,
        between=test.between if test else None, ratio=ratio, interval=bounds(interval),
        prediction=Bounds(low=ends[0], high=ends[1], level=0.95))


def load_figures(pooled: Sequence[Pair], alone: Sequence[Pair]) -> ByLoad | None:
    """Return the ratio of pairs that ran alone against that of the same seeds in the pool; None: no seed has both.

    The order within a block is the same both ways, and so is all that its seed draws.
    """
    own = {pair.repeat: pair for pair in alone}
    pooled = [pair for pair in pooled if pair.repeat in own]
    if not pooled:
        return None
    above, below = (_over_pairs(name, pairs) for name, pairs in (
        ("these seeds in the pool", pooled), ("alone", [own[pair.repeat] for pair in pooled])))
    changes = [Pair(repeat=pair.repeat, candidate=pair.candidate / pair.baseline,
                    baseline=own[pair.repeat].candidate / own[pair.repeat].baseline) for pair in pooled]
    found = stats.or_none(lambda: mean_log(list(_logs(changes)))) if len(changes) >= LEAST_REPEATS else None
    return ByLoad(alone=below, pooled=above, ratio=above.ratio / below.ratio, p=two_sided(found) if found else None,
                  interval=bounds(stats.paired_ratio(*sides_of(changes))[1]) if found else None)


def _over_pairs(name: str, pairs: Sequence[Pair]) -> NodeRatio:
    return NodeRatio(name=name, pairs=len(pairs), ratio=math.exp(math.fsum(_logs(pairs)) / len(pairs)),
                     interval=bounds(stats.paired_ratio(*sides_of(pairs))[1]) if len(pairs) > 1 else None)


def sides_of(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the figures of the candidate and of the baseline."""
    return [pair.candidate for pair in pairs], [pair.baseline for pair in pairs]


def _logs(pairs: Sequence[Pair]) -> Any:
    return stats.log_ratios(*sides_of(pairs))

"""Bucket elimination: the least sum of tables of costs over variables with few states.

Source: R. Dechter, "Bucket elimination: a unifying framework for reasoning" (Artificial
Intelligence, 1999). Variables are eliminated one after another, the variable with the smallest
table first. This order gives a tree of buckets; messages along the tree contain least costs. The
messages are stored: where one variable was fixed and the costs of another variable are wanted next,
only the messages on the path between these two variables are computed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

LARGEST_TABLE = 1 << 22
"""Number of entries of the largest table that may be made (32 MiB of float64)."""

Table = tuple[tuple[int, ...], np.ndarray]
"""Variables, and an array of the cost of each combination of their states, with one axis for each
variable."""


class GraphTooWideError(ValueError):
    """Raised for a graph whose formats cannot be chosen exactly, because a table would be too
    large."""


def check_size(entries: int, width: int) -> None:
    """Raises GraphTooWideError when a table over `width` variables would be too large."""
    if entries > LARGEST_TABLE:
        raise GraphTooWideError(
            f"the network's graph is too entangled: a table over {width} variables has {entries} "
            f"entries, at most {LARGEST_TABLE} are allowed; give the nodes fewer distinct layouts")


class BucketTree:
    """An order of elimination, as a tree with a bucket for each variable.

    bucket: the number of each variable's bucket.
    members: the variables of each bucket, the bucket's own variable first. A variable is given by
    the number of the bucket in which it is eliminated.
    above: the parent of each bucket.
    neighbours: the buckets next to each bucket in the tree.

    Buckets are numbered in the order of elimination, so a parent has a higher number than its
    children. All variables of a bucket except the bucket's own variable are also variables of the
    parent. The last bucket of a component that is not connected to the rest of the graph has the
    last bucket of all as its parent, and shares no variable with it.
    """

    def __init__(self, sizes: Sequence[int], scopes: Iterable[tuple[int, ...]]) -> None:
        near: list[set[int]] = [set() for _ in sizes]
        for scope in scopes:
            for variable in scope:
                near[variable].update(scope)
        for variable, neighbours in enumerate(near):
            neighbours.discard(variable)

        def entries(variable: int) -> int:
            return sizes[variable] * math.prod(sizes[other] for other in near[variable])

        queue = [(entries(variable), variable) for variable in range(len(sizes))]
        heapq.heapify(queue)
        order: dict[int, int] = {}
        while queue:
            count, variable = heapq.heappop(queue)
            if variable in order or count != entries(variable):
                continue
            check_size(count, len(near[variable]) + 1)
            order[variable] = len(order)
            for other in near[variable]:
                near[other] |= near[variable]
                near[other] -= {variable, other}
            for other in near[variable]:
                heapq.heappush(queue, (entries(other), other))

        last = len(sizes) - 1
        self.bucket = [order[variable] for variable in range(len(sizes))]
        self.members = [(order[v], *sorted(order[other] for other in near[v])) for v in order]
        self.above = [members[1] if len(members) > 1 else last for members in self.members]
        self.neighbours: list[list[int]] = [[] for _ in order]
        for bucket, above in enumerate(self.above[:-1]):
            self.neighbours[bucket].append(above)
            self.neighbours[above].append(bucket)

    def path(self, start: int, end: int) -> list[int]:
        """Returns the buckets on the way from one bucket to another, both included."""
        rise, fall = [start], [end]
        while rise[-1] != fall[-1]:
            side = rise if rise[-1] < fall[-1] else fall
            side.append(self.above[side[-1]])
        return rise + fall[-2::-1]


class Elimination:
    """The costs of the buckets of a tree, and the messages that lead towards the bucket `root`.

    floors: the cost of each state of each variable alone.
    tables: the costs of combinations of states.
    """

    def __init__(self, tree: BucketTree, floors: Sequence[np.ndarray],
                 tables: Iterable[Table]) -> None:
        self.tree = tree
        self.floors: list[np.ndarray] = [np.empty(0)] * len(floors)
        for variable, costs in enumerate(floors):
            self.floors[tree.bucket[variable]] = costs
        self.tables: list[list[Table]] = [[] for _ in floors]
        for scope, table in tables:
            buckets = [tree.bucket[variable] for variable in scope]
            table = table.reshape([len(floors[variable]) for variable in scope])
            ordered = tuple(sorted(buckets))
            self.tables[ordered[0]].append((ordered, table.transpose(np.argsort(buckets))))
        self.messages: dict[tuple[int, int], np.ndarray] = {}
        self.root = len(floors) - 1
        for bucket in range(self.root):
            self._send(bucket, tree.above[bucket])

    def total(self) -> float:
        """Returns the least total cost."""
        return float((self._sum(self.root, None) + self.floors[self.root]).min())

    def others(self, variable: int) -> np.ndarray:
        """Returns for each state of a variable the least total cost without the variable's own
        cost."""
        bucket = self.tree.bucket[variable]
        for start, end in pairwise(self.tree.path(self.root, bucket)):
            self._send(start, end)
        self.root = bucket
        total = self._sum(bucket, None)
        return total.min(axis=tuple(range(1, total.ndim)))

    def fix(self, state: int, cost: float) -> None:
        """Restricts the variable of the last call of others() to one state, with the given cost."""
        self.floors[self.root] = np.full(len(self.floors[self.root]), np.inf)
        self.floors[self.root][state] = cost

    def _send(self, start: int, end: int) -> None:
        members = self.tree.members[start]
        floors = self.floors[start].reshape(-1, *[1] * (len(members) - 1))
        shared = self.tree.members[min(start, end)][1:]
        axes = tuple(axis for axis, member in enumerate(members) if member not in shared)
        self.messages[start, end] = (self._sum(start, end) + floors).min(axis=axes)

    def _sum(self, bucket: int, receiver: int | None) -> np.ndarray:
        """Returns the sum of a bucket's tables and of the messages to it, with one axis for each
        member of the bucket. The message from the bucket `receiver` is left out."""
        members = self.tree.members[bucket]
        parts = list(self.tables[bucket])
        parts += [(self.tree.members[min(bucket, other)][1:], self.messages[other, bucket])
                  for other in self.tree.neighbours[bucket] if other != receiver]
        total = np.zeros([len(self.floors[member]) for member in members])
        for scope, table in parts:
            total += table.reshape([len(self.floors[member]) if member in scope else 1
                                    for member in members])
        return total

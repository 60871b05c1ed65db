"""Groups nodes that are computed together, such that all groups can be computed one after
another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gossamer.model.readers.onnx.order import stable_order


class Clusters:
    """Groups of steps; each group can be computed as one step.

    A step is the computation of one node: it reads some values and makes others. Steps are added in
    an order in which they can be computed. A group is connected, and no path leads from a group
    through steps outside of it back into the group.
    """

    def __init__(self) -> None:
        self._reads: list[Sequence[str]] = []
        self._makers: dict[str, int] = {}
        self._group: dict[int, int] = {}
        self._members: dict[int, list[int]] = {}

    def add(self, reads: Iterable[str], makes: Iterable[str]) -> int:
        """Adds a step, and returns its number."""
        number = len(self._reads)
        self._reads.append(tuple(dict.fromkeys(reads)))
        self._makers.update(dict.fromkeys(makes, number))
        return number

    def join(self, step: int) -> None:
        """Makes a group of the last step that was added, and joins to it each group whose values
        the step reads. A group is not joined where a path through steps outside of both groups
        leads from one of them to the other."""
        group = step
        self._group[step], self._members[step] = step, [step]
        for other in dict.fromkeys(self._group_of(name) for name in self._reads[step]):
            if other is not None and not self._leads(other, group) and not self._leads(
                    group, other):
                for member in self._members.pop(other):
                    self._group[member] = group
                    self._members[group].append(member)
        self._members[group].sort()

    def group_of(self, step: int) -> int:
        """Returns the group of a step that was joined."""
        return self._group[step]

    def groups(self) -> list[list[int]]:
        """Returns the steps of each group, in order."""
        return sorted(self._members.values())

    def independent(self, groups: Sequence[Collection[int]]) -> list[list[int]]:
        """Returns the numbers of the groups that can be computed together in one step: as many of
        them as no path leads from one to another.

        groups: some of the groups; steps of other groups are computed alone.
        """
        place = list(range(len(self._reads)))
        for group in groups:
            for step in group:
                place[step] = min(group)
        before: list[set[int]] = [set() for _ in place]
        for step, of in enumerate(place):
            before[of].update({place[maker] for maker in self._before(step)} - {of})
        number = {min(group): index for index, group in enumerate(groups)}
        depth: dict[int, int] = {}
        found: dict[int, list[int]] = {}
        for of in stable_order(before, set(place)):
            depth[of] = max((depth[other] for other in before[of]), default=0)
            if of in number:
                found.setdefault(depth[of], []).append(number[of])
                depth[of] += 1
        return [sorted(together) for together in found.values()]

    def maker(self, name: str) -> int | None:
        """Returns the step that makes a value; None where no step makes it."""
        return self._makers.get(name)

    def _group_of(self, name: str) -> int | None:
        maker = self._makers.get(name)
        return None if maker is None else self._group.get(maker)

    def _leads(self, first: int, second: int) -> bool:
        """Returns whether a path leads from the group `first` through steps outside of both groups
        to the group `second`."""
        inside = {*self._members[first], *self._members[second]}
        waiting = [maker for member in self._members[second] for maker in self._before(member)
                   if maker not in inside]
        seen: set[int] = set()
        while waiting:
            step = waiting.pop()
            if step in seen:
                continue
            seen.add(step)
            for other in self._members.get(self._group.get(step, -1), [step]):
                for maker in self._before(other):
                    if maker in self._members[first]:
                        return True
                    if maker not in inside:
                        waiting.append(maker)
        return False

    def _before(self, step: int) -> list[int]:
        return [self._makers[name] for name in self._reads[step] if name in self._makers]

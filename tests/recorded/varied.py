"""Cases that differ from a first case in one option, in each pair of options that is drawn, or in
every option: so that each condition of the code under test is met and is not met."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Options = dict[str, Any]


def varied(options: Mapping[str, Sequence[Any]], drawn: int = 0, changes: int = 2,
           seed: int = 0) -> Iterator[tuple[str, Options]]:
    """Yields a name and the options of each case. The first case has the first value of every
    option, one further case has each other value alone, and `drawn` cases have other values in
    `changes` options."""
    first = {name: values[0] for name, values in options.items()}
    yield "first", dict(first)
    seen = {"first"}
    for name, values in options.items():
        for value in values[1:]:
            seen.add(case := f"{name}={_text(value)}")
            yield case, first | {name: value}
    rng = random.Random(seed)
    several = [name for name, values in options.items() if len(values) > 1]
    for _ in range(drawn):
        changed = {name: rng.choice(options[name][1:])
                   for name in sorted(rng.sample(several, min(changes, len(several))))}
        case = " ".join(f"{name}={_text(value)}" for name, value in changed.items())
        if case not in seen:
            seen.add(case)
            yield case, first | changed


def _text(value: Any) -> str:
    text = value if isinstance(value, str) and value[:1].isalpha() else repr(value)
    return text.replace(": ", ":").replace(", ", ",")

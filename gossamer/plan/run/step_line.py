"""The line that debug levels from 2 on print for a step."""

from __future__ import annotations

from gossamer.io.text import duration_text
from gossamer.ops.algorithm import State
from gossamer.plan.program import Step


def step_line(step: Step, elapsed_us: float, state: State, level: int) -> str:
    """Returns the line about a step that just ran, for the debug levels from 2 on."""
    problem = step.problem
    # a layer that launched nothing took no time
    per_ns = 1e-3 / elapsed_us if elapsed_us else 0.0
    text = (f"{step.layer.name}: {problem.describe()}, {step.algorithm.name} on "
            f"{step.device.name}: {duration_text(elapsed_us)}, "
            f"{problem.flops * per_ns:.1f} GFLOP/s, {problem.least_bytes * per_ns:.1f} GB/s")
    if level >= 3:
        text += f" [{step.config_text}]"
        text += "".join(f"; not {name}: {reason}" for name, reason in step.rejected.items())
    if level >= 4:
        text += "".join(f"; {launch.kernel.name}: {launch.kernel.registers} registers, "
                        f"{launch.kernel.spill_bytes} bytes spilled" for launch in state.launches)
    return text

"""Measurements to store, for a device that a test describes."""

import sqlite3
from types import SimpleNamespace

from gossamer.measure import Timing
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.candidate import Measurement
from gossamer.plan.store import database
from gossamer.plan.store.tuning_cache import TuningCache

TIMING = Timing(123.4, 120.0, 130.1, 20)


def device(**changed):
    """Returns an object with the attributes of a device that a cache reads."""
    fields = {"name": "opencl:0", "api": "opencl", "description": "Abacus 3000 (wooden)",
              "driver": "beads 1.0", "toolkit": "", "compute_units": 4, **changed}
    limits = SimpleNamespace(compute_units=fields.pop("compute_units"))
    return SimpleNamespace(limits=limits, **fields)


def problem(rows=1):
    return GemmProblem(rows, 10, 20)


def measured(config="tile=8", algorithm="tiled", median_us=12.0, **others):
    return Measurement(algorithm, config, ("row",), ("row",), "fp32", median_us, median_us - 1,
                       median_us + 1, **others)


def cache(folder, **changed):
    return TuningCache(device(**changed), folder)


def good_file(folder):
    """Writes a data base with measurements of a problem and times of a plan, and returns its path
    and content."""
    stored = cache(folder)
    stored.put({problem(): [measured()]})
    stored.put_plans({"plan key": ("small, batch 1", Timing(9.0, 8.0, 10.0, 20))})
    return stored.path, database.read(stored.path)


def fill_disk(patch):
    """Lets no data base grow."""
    connect = sqlite3.connect

    def full(*arguments, **options):
        base = connect(*arguments, **options)
        base.execute("PRAGMA max_page_count = 1")
        return base

    patch.setattr(sqlite3, "connect", full)


def disk_error(code, text):
    """Returns the error that SQLite gives with a code."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error

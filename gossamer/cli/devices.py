"""The verb `devices`: lists the devices that this machine can compute on."""

from __future__ import annotations

from dataclasses import asdict

import gossamer
from gossamer.cli.options import JsonOption
from gossamer.io import terminal
from gossamer.io.text import bytes_text


def devices(as_json: JsonOption = False) -> None:
    """List the devices of this machine: PASS, or why one cannot be used."""
    rows = [asdict(device) for device in gossamer.devices()]
    if as_json:
        terminal.print_json(rows)
        return
    for row in rows:
        row["memory"] = bytes_text(row["memory_bytes"]) if row["memory_bytes"] else ""
        row["compute_units"] = row["compute_units"] or None
        row["state"] = row["problem"] or "PASS"
    terminal.print_table({"name": "device", "state": "state", "description": "name",
                          "compute_units": "compute units", "memory": "memory",
                          "driver": "driver"}, rows,
                         spare=("driver", "memory", "compute_units", "description"))

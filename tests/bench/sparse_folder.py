"""A folder of sparse weights like that of --data, with tiny networks."""

from __future__ import annotations

from pathlib import Path

from gossamer_bench import sparse_data

HEADING = "net,layer,C,M,K,Hin,Hout,stride,pad,groups,sparsity_pct"
LINES = ("tiny,3x3,8,12,3,7,7,1,1,2,80", "tiny,dense,8,12,1,7,7,1,0,1,0.5")


def tiny_folder(folder: Path, *lines: str) -> Path:
    """Creates all files that are expected; all are empty except SkimCaffe's layers."""
    for name in sparse_data.ALL:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / sparse_data.SKIMCAFFE).write_text("\n".join([HEADING, *(lines or LINES), ""]))
    return folder

"""A folder as --data names it, its networks tiny."""

from __future__ import annotations

from pathlib import Path

from gossamer.bench import sparse_data

HEADING = "net,layer,C,M,K,Hin,Hout,stride,pad,groups,sparsity_pct"
LINES = ("tiny,3x3,8,12,3,7,7,1,1,2,80", "tiny,dense,8,12,1,7,7,1,0,1,0.5")


def tiny_folder(folder: Path, *lines: str) -> Path:
    """All files that are expected, empty but for SkimCaffe's layers."""
    for name in sparse_data.ALL:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / sparse_data.SKIMCAFFE).write_text("\n".join([HEADING, *(lines or LINES), ""]))
    return folder

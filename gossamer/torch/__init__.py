"""Modules of PyTorch made fast: `optimize`, `explain`, and a backend of torch.compile.

PyTorch is imported when one of them is first used.
"""

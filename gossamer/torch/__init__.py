"""Optimisation of PyTorch modules: `optimize`, `explain`, and a backend of torch.compile.

PyTorch is imported only when one of them is used.
"""

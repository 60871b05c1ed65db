"""The ops of networks.

Each has a folder with its problem, its reference and its algorithms.
"""

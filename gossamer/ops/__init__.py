"""The ops of networks.

Most ops have a folder of their own, with the problem, the reference and the algorithms.
"""

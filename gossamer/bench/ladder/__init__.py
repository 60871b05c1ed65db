"""The published ladder: MobileNetV2 by six programs, each with one improvement over the one before.

These programs, its rungs, are measured beside gossamer's plans and are never candidates of a plan.
"""

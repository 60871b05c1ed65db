"""The published ladder: MobileNetV2 by six programs, each with one improvement over the program
before.

These programs, the rungs of the ladder, are measured beside gossamer's plans and are never
candidates of a plan.
"""

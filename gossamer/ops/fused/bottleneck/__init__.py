"""Bottleneck blocks of ResNet as one kernel."""

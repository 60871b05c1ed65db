"""Runs that take minutes, each with a make target: servers under load and under malformed requests,
several stand-in devices, and a cluster that loses workers."""

"""NVIDIA's libraries, loaded when one of them is first asked for."""

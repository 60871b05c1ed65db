"""NVIDIA's libraries, each loaded when it is first used."""

"""NVIDIA's libraries, each of which is loaded when it is first used."""

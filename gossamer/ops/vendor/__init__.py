"""NVIDIA's libraries, loaded at their first use."""

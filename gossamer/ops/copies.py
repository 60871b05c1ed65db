"""The headers for kernels that copy to shared memory while they compute."""

from pathlib import Path

ASYNC_COPIES = Path(__file__).with_name("async_copies.h")
"""Copies that the work-item that started them waits for."""
COPY_BARRIERS = Path(__file__).with_name("copy_barriers.h")
"""Barriers by which some warps wait for the copies of others; addresses are those of
ASYNC_COPIES."""

"""gossamer makes thin networks fast."""

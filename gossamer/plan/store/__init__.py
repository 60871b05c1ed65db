"""Files on disk: saved plans and stored measurements."""

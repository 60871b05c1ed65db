"""What is kept on disk: saved plans and stored measurements."""

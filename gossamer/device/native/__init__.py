"""Machine code that is generated for this CPU, and threads that run it."""

"""Machine code that is generated for this processor, and threads that run it."""

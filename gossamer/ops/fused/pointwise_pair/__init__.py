"""Two convolutions of single pixels, of which the first writes many channels, as one kernel."""

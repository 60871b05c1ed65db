"""What is measured: layers, networks and training, with their shapes."""

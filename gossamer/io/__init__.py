"""User files (images, arrays, class names, results), terminal output and processes."""

"""Files of users (images, arrays, class names, results), text in the terminal, and processes."""

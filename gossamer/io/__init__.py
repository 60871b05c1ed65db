"""Files of the user (images, arrays, class names, results) and text in the terminal."""

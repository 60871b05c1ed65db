"""Files of users: images, arrays and labels in, and results out, each written whole or not at all."""

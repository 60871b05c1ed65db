"""Reports of the algorithms that compute the layers: rows, text and an HTML page."""

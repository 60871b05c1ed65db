"""What a plan runs where, as rows, text and a page."""

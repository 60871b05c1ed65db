"""What several sparse convolutions share."""

"""Weight tables and device checks that several sparse convolutions share."""

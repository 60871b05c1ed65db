"""Plans of networks: how they are lowered, tuned, chosen, run, stored and reported."""

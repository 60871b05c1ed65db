"""Stand-ins for libraries of peers, which compute with NumPy: the peers' code is tested with them
where a library is not installed. Each has the functions that gossamer.bench.peers calls."""

"""Report -> terminal, JSON: the only place, with the command line, where numbers become sentences."""

"""A compilation, watched: the graphs it makes, as cases; and a guard that stands before any backend."""

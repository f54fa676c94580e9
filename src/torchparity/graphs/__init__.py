"""A graph with the values it computed, and parts of it as graphs of their own."""

"""A request -> something to call."""

"""One function for each command, readable from top to bottom."""

"""From a graph that fails to the smallest that still does."""

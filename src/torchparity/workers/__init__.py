"""Processes that may die; they know nothing of what they run."""

"""A Python function as data: printed, edited, made small."""

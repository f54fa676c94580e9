"""Subject or case -> verdict."""

"""Case -> verdict: the oracle."""

"""Two results -> mismatches: pairing leaves, streaming statistics, and the judgement on each leaf."""

"""Side by side with the stock tools, in one run, as ratios."""

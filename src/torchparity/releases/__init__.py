"""Released versions of torch: an environment for each, a script run in all of them, since when it fails."""

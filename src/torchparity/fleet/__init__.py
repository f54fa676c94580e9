"""Many subjects, many ways to compile them: suites, their store, baselines, twins, clusters."""

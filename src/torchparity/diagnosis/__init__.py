"""From a failing case to a finding: which operation, which stage, which pass."""

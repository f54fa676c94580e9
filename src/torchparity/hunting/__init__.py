"""Programs -> finds: a grammar, a campaign, duplicates, known bugs."""

"""The command line: parser, option groups, exit codes; no logic."""

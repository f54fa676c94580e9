"""`python -m torchparity` is `torchparity`."""

from torchparity.cli.main import main

main()

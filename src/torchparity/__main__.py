"""`python -m torchparity` is `torchparity`."""

from torchparity.cli.start import main

main()

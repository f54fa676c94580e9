"""Several processes of torchrun, one verdict."""

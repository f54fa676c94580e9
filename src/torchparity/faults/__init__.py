"""Compilers that are wrong on purpose: for tests, benchmarks, the demo, and for people who want to know
whether their own checks would notice.
"""

from torchparity.faults.kinds import KINDS, Fault
from torchparity.faults.plant import Planted, plant

__all__ = ["KINDS", "Fault", "Planted", "plant"]

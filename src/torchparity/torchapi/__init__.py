"""The one door to private torch: every private name that torchparity uses is looked up in this room, and nowhere else.

Lookups are lazy, so importing torchparity imports no compiler.
"""

from torch.multiprocessing.reductions import StorageWeakRef as StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

from torchparity.torchapi import dynamo as dynamo
from torchparity.torchapi import inductor as inductor
from torchparity.torchapi.builds import *  # noqa: F403
from torchparity.torchapi.choices import *  # noqa: F403
from torchparity.torchapi.compilers import *  # noqa: F403
from torchparity.torchapi.devices import *  # noqa: F403
from torchparity.torchapi.door import lookup as lookup
from torchparity.torchapi.dynamo import heard_compilations as heard_compilations
from torchparity.torchapi.memory import *  # noqa: F403
from torchparity.torchapi.operators import *  # noqa: F403
from torchparity.torchapi.samples import *  # noqa: F403
from torchparity.torchapi.tensors import *  # noqa: F403

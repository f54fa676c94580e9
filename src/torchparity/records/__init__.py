"""Every record that more than one folder knows. Frozen, keyword-only, no behaviour beyond derived values."""

from torchparity.records.diagnosis import *  # noqa: F403
from torchparity.records.findings import *  # noqa: F403
from torchparity.records.hunt import *  # noqa: F403
from torchparity.records.programs import *  # noqa: F403
from torchparity.records.ranks import *  # noqa: F403
from torchparity.records.releases import *  # noqa: F403
from torchparity.records.signature import *  # noqa: F403
from torchparity.records.story import *  # noqa: F403
from torchparity.records.sweep import *  # noqa: F403
from torchparity.records.verdict import *  # noqa: F403

"""Tiers behind the device's KV blocks: the host tier, and a connector that goes wrong on command.

Read `manager` for what the engine does, then `host`; `index` says which blocks the tier keeps,
`testing` what can go wrong.
"""

from .host import HostTier
from .testing import Fault, FaultyConnector, OnCancel, delayed_loads, random_faults

__all__ = ["Fault", "FaultyConnector", "HostTier", "OnCancel", "delayed_loads", "random_faults"]

"""Tiers behind the device's KV blocks: the host tier, and a connector that goes wrong on command.

Read `host` first; `index` says which blocks the tier keeps, `testing` what can go wrong.
"""

from .host import HostTier
from .testing import Fault, FaultyConnector, OnCancel, random_faults

__all__ = ["Fault", "FaultyConnector", "HostTier", "OnCancel", "random_faults"]

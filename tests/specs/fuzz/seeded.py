"""The reference engine with one fault each: one for every class of the public record.

Each entry names the fault, the rules that may find it, and the engine. The faults are what real
engines had: a reset that raises, a block freed under a transfer, a session's chunk that is lost.
"""

from __future__ import annotations

from . import seeded_administration, seeded_memory, seeded_requests
from .seeding import Seeded

FAULTS: list[Seeded] = [
    *seeded_administration.FAULTS,
    *seeded_memory.FAULTS,
    *seeded_requests.FAULTS,
]

"""Which blocks the host tier keeps, where, and which goes first: an LRU index over numbered slots.

A slot is room for one block. An entry that a copy reads is pinned: it is neither evicted nor is
its slot used again before the last reader is done, not even when the tier is cleared meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Entry:
    """One stored block."""

    __slots__ = ("kept", "key", "pins", "slot")

    def __init__(self, key: bytes, slot: int) -> None:
        self.key = key
        self.slot = slot
        self.pins = 0  # copies that read it now
        self.kept = True  # False: dropped from the index, its slot is free once nobody reads it


class TierIndex:
    """Keys to slots, least recently used first. Not thread-safe: its owner has the lock."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        #: Moves on with every `clear`: a store that began before it must install nothing.
        self.generation = 0
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        # Popped from the end, so fresh slots are handed out in adjacent runs.
        self._free = list(range(slots - 1, -1, -1))
        self._pinned = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    @property
    def free(self) -> int:
        """Slots that hold nothing and that nobody reads or writes."""
        return len(self._free)

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are stored."""
        entries = self._entries
        for count, key in enumerate(keys):
            if key not in entries:
                return count
        return len(keys)

    def touch(self, keys: Sequence[bytes]) -> None:
        """These were of use. Tails become older than their heads, without which they are none."""
        for key in reversed(keys):
            if key in self._entries:
                self._entries.move_to_end(key)

    def pin(self, keys: Sequence[bytes]) -> list[Entry]:
        """Take the leading stored keys for a copy that reads them, until `unpin`."""
        keys = keys[: self.leading(keys)]
        self.touch(keys)
        entries = [self._entries[key] for key in keys]
        for entry in entries:
            self._pinned += entry.pins == 0 and entry.kept
            entry.pins += 1
        return entries

    def unpin(self, entries: Iterable[Entry]) -> None:
        """The copy is over."""
        for entry in entries:
            entry.pins -= 1
            if entry.pins == 0:
                if entry.kept:
                    self._pinned -= 1
                else:
                    self._free.append(entry.slot)

    def reserve(self, wanted: int) -> list[int]:
        """Slots to store into; the least recently used entries make room. Fewer if all is in use.

        A slot belongs to the caller until `install` or `give_back`.
        """
        while len(self._free) < wanted and len(self._entries) > self._pinned:
            victim = next(entry for entry in self._entries.values() if not entry.pins)
            del self._entries[victim.key]
            victim.kept = False
            self._free.append(victim.slot)
        count = min(wanted, len(self._free))
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken[::-1]

    def install(self, keys: Sequence[bytes], slots: Sequence[int], generation: int) -> int:
        """What was copied into the slots can be loaded from now on. Returns how many are new.

        Nothing is installed if the tier was cleared since the copy began.
        """
        installed = 0
        for key, slot in zip(reversed(keys), reversed(slots), strict=True):
            if generation != self.generation or key in self._entries:
                self._free.append(slot)
            else:
                self._entries[key] = Entry(key, slot)
                installed += 1
        self.touch(keys)
        return installed

    def give_back(self, slots: Sequence[int]) -> None:
        """Reserved, and not used."""
        self._free.extend(reversed(slots))

    def clear(self) -> None:
        """Nothing stored before can be loaded any more; slots in use become free when they end."""
        self.generation += 1
        for entry in self._entries.values():
            entry.kept = False
            if not entry.pins:
                self._free.append(entry.slot)
        self._entries.clear()
        self._pinned = 0

    def check(self) -> None:
        """Raise AssertionError unless every kept entry has a slot of its own and pins agree."""
        slots = [entry.slot for entry in self._entries.values()] + self._free
        assert len(slots) == len(set(slots)), "a slot is in use twice"
        assert self._pinned == sum(entry.pins > 0 for entry in self._entries.values())
        assert all(key == entry.key and entry.kept for key, entry in self._entries.items())

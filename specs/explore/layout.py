"""How a state is packed: fields into bytes, bytes into 64-bit words.

No field crosses the end of a byte, so that fields are taken out of byte columns and put back by
operations on bytes, eight times as many at once as on words. An *aligned* layout gives each
request words of its own, and each pair, block and transfer bytes of its own, in one order:
exchanging requests or blocks then is exchanging words or bytes. Else fields are packed as tightly
as bytes allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .instance import InstanceError
from .structure import Slot

#: The most words that a state may take.
MAX_WORDS = 8


@dataclass(frozen=True)
class Place:
    """Where a slot's value lies, less its least value."""

    slot: Slot
    byte: int
    shift: int
    width: int

    @property
    def mask(self) -> int:
        """Its bits, at the bottom of a byte."""
        return (1 << self.width) - 1


class Layout:
    """The places of all slots."""

    def __init__(self, slots: Sequence[Slot], *, aligned: bool = False) -> None:
        """Raises InstanceError if a field or the state does not fit."""
        found: dict[str, Place] = {}
        #: For each owner of fields its bytes, in order; not aligned, "" owns all.
        self.bytes_of: dict[str, list[int]] = {}
        #: For each request its words, in order; empty if not aligned.
        self.words_of: list[list[int]] = []
        size = 0
        for request, owners in _by_request(slots, aligned).items():
            start = size = -(-size // 8) * 8 if request else size
            for owner, group in owners.items():
                taken = _filled(group)
                for slot, (byte, shift) in taken.items():
                    found[slot.name] = Place(slot, size + byte, shift, _width(slot))
                count = 1 + max(byte for byte, _ in taken.values())
                self.bytes_of[owner] = list(range(size, size + count))
                size += count
            if request:
                size = -(-size // 8) * 8
                self.words_of.append(list(range(start // 8, size // 8)))
        self.places = [found[slot.name] for slot in slots]
        self.by_name = found
        self.words = max(1, -(-size // 8))
        self.bits = sum(place.width for place in self.places)
        if self.words > MAX_WORDS:
            raise InstanceError(
                f"a state of this instance takes {self.bits} bits in {self.words} words of 64; at "
                f"most {MAX_WORDS} are packed: take fewer requests, blocks, transfers or features"
            )

    def pack(self, values: Sequence[int]) -> tuple[int, ...]:
        """The words of a state, as signed ints. Raises OverflowError for a value out of range."""
        packed = bytearray(8 * self.words)
        for place, value in zip(self.places, values, strict=True):
            if not place.slot.low <= value <= place.slot.high:
                raise OverflowError(
                    f"{place.slot.name} is {value}, outside {place.slot.low}..{place.slot.high}"
                )
            packed[place.byte] |= (value - place.slot.low) << place.shift
        return tuple(
            int.from_bytes(packed[8 * word : 8 * word + 8], "little", signed=True)
            for word in range(self.words)
        )

    def unpack(self, words: Sequence[int]) -> tuple[int, ...]:
        """The values of the slots."""
        packed = b"".join(int(word).to_bytes(8, "little", signed=True) for word in words)
        return tuple(
            (packed[place.byte] >> place.shift & place.mask) + place.slot.low
            for place in self.places
        )


def _width(slot: Slot) -> int:
    return (slot.high - slot.low).bit_length()


def _filled(slots: Sequence[Slot]) -> dict[Slot, tuple[int, int]]:
    """Byte and shift of each slot: the widest first, each into the first byte with room."""
    used: list[int] = []
    found: dict[Slot, tuple[int, int]] = {}
    for slot in sorted(slots, key=_width, reverse=True):
        width = _width(slot)
        # Values are read as signed bytes, those of a whole byte's width would be negative.
        if width > 7:
            raise InstanceError(
                f"{slot.name} goes from {slot.low} to {slot.high}, more than 128 values: take "
                "smaller bounds"
            )
        byte = next((n for n, bits in enumerate(used) if bits + width <= 8), len(used))
        if byte == len(used):
            used.append(0)
        found[slot] = byte, used[byte]
        used[byte] += width
    return found


def _by_request(slots: Sequence[Slot], aligned: bool) -> dict[str, dict[str, list[Slot]]]:
    """The slots by request ("r0", …; "" for all others), and within one by their owner."""
    found: dict[str, dict[str, list[Slot]]] = {}
    for slot in slots:
        owner = owner_of(slot.record) if aligned else ""
        request = owner.partition("_")[0] if owner.startswith("r") else ""
        found.setdefault(request, {}).setdefault(owner, []).append(slot)
    # The requests first: their words begin where a word begins.
    return dict(sorted(found.items(), key=lambda item: not item[0]))


#: Which owner's fields a record's are: of a request ("r0"), of a block ("b1"), of a transfer
#: ("t0"), or of a pair with a block ("r0_1", "t0_1").
_OWNERS = {
    "e": "e",
    "phase": "e",
    "r": "r",
    "work": "r",
    "place": "r",
    "held": "r",
    "t": "t",
    "fault": "t",
    "copy": "t",
    "carried": "t",
    "b": "b",
    "more": "b",
}


def owner_of(record: str) -> str:
    """The owner of a record's fields."""
    name = record.rstrip("0123456789_")
    return _OWNERS[name] + record[len(name) :]

"""How a state is packed into 64-bit words.

A request's fields are kept together in one word, so that requests can be exchanged by exchanging
bits; so are the fields of a (request, block) pair within it, so that blocks can. Fields never
cross the end of a word. Bit 63 is left free: words are signed integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .instance import InstanceError
from .structure import Slot

#: The most words that a state may take.
MAX_WORDS = 8
WORD_BITS = 63


@dataclass(frozen=True)
class Place:
    """Where a slot's value lies, less its least value."""

    slot: Slot
    word: int
    shift: int
    width: int

    @property
    def mask(self) -> int:
        """Its bits, at the bottom of a word."""
        return (1 << self.width) - 1


class Layout:
    """The places of all slots."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        """Raises InstanceError if the state does not fit."""
        places: list[Place] = []
        word, used = 0, 0
        for group in _groups(slots):
            bits = sum(_width(slot) for slot in group)
            if used + bits > WORD_BITS and used:
                word, used = word + 1, 0
            for slot in group:
                width = _width(slot)
                if used + width > WORD_BITS:
                    word, used = word + 1, 0
                places.append(Place(slot, word, used, width))
                used += width
        self.places = places
        self.words = word + 1
        self.bits = sum(place.width for place in places)
        self.by_name = {place.slot.name: place for place in places}
        if self.words > MAX_WORDS:
            raise InstanceError(
                f"a state of this instance takes {self.bits} bits in {self.words} words; at most "
                f"{MAX_WORDS} words of {WORD_BITS} bits are packed: take fewer requests, blocks, "
                "transfers or features"
            )

    def pack(self, values: Sequence[int]) -> tuple[int, ...]:
        """The words of a state. Raises OverflowError for a value outside of its slot's range."""
        words = [0] * self.words
        for place, value in zip(self.places, values, strict=True):
            if not place.slot.low <= value <= place.slot.high:
                raise OverflowError(
                    f"{place.slot.name} is {value}, outside {place.slot.low}..{place.slot.high}"
                )
            words[place.word] |= (value - place.slot.low) << place.shift
        return tuple(words)

    def unpack(self, words: Sequence[int]) -> tuple[int, ...]:
        """The values of the slots."""
        return tuple(
            (int(words[place.word]) >> place.shift & place.mask) + place.slot.low
            for place in self.places
        )


def _width(slot: Slot) -> int:
    return (slot.high - slot.low).bit_length()


def _groups(slots: Sequence[Slot]) -> list[list[Slot]]:
    """The slots by whom they are about: the engine, each request, each block, each transfer."""
    groups: dict[str, list[Slot]] = {}
    for slot in slots:
        groups.setdefault(owner_of(slot.record), []).append(slot)
    return list(groups.values())


def owner_of(record: str) -> str:
    """Who a record is about: "engine", "r0", "b1", "t0"."""
    name = record.rstrip("0123456789_")
    first = record[len(name) :].partition("_")[0]
    return _OWNERS[name] + first


_OWNERS = {
    "e": "engine",
    "phase": "engine",
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

"""A KV cache without numbers: every slot remembers for which token prefix it was written.

A prefix is an int that stands for a whole token sequence (a node of a trie), 0 for garbage. So
"this position holds this request's own KV" is one comparison, and a block that was freed too
early, loaded too late or cached under another hash shows as a prefix that does not belong there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GARBAGE = 0
ROOT = 1


class Prefixes:
    """Token sequences as ints: equal sequences have equal ints."""

    def __init__(self) -> None:
        self._child: dict[tuple[int, int], int] = {}
        self._parent: list[tuple[int, int]] = [(0, -1), (0, -1)]

    def extend(self, prefix: int, token: int) -> int:
        """The prefix that is `prefix` and then `token`."""
        key = (prefix, token)
        found = self._child.get(key)
        if found is None:
            found = self._child[key] = len(self._parent)
            self._parent.append(key)
        return found

    def chain(self, tokens: Sequence[int], start: int = ROOT) -> tuple[int, ...]:
        """One prefix for each position of `tokens`, which follow on `start`."""
        chain = []
        for token in tokens:
            start = self.extend(start, token)
            chain.append(start)
        return tuple(chain)

    def tokens(self, prefix: int) -> tuple[int, ...]:
        """The tokens that a prefix stands for; none for garbage."""
        tokens: list[int] = []
        while prefix > ROOT:
            prefix, token = self._parent[prefix]
            if token >= 0:  # the others separate epochs
                tokens.append(token)
        return tuple(reversed(tokens))


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a step: positions `start` to `end` of `tokens` are computed."""

    table: Sequence[int]  # block ids, in order
    tokens: Sequence[int]
    start: int
    end: int
    root: int = 0  # the epoch in which the step was launched; 0: the present one


@dataclass(frozen=True, slots=True)
class Wrong:
    """A position whose KV was not what the request needs; block -1: there is none."""

    position: int
    block: int
    why: str


class FakeKV:
    """The contents of a pool of blocks, `block_size` slots each."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.prefixes = Prefixes()
        self.root = ROOT
        self.resident = True
        self._slots = [[GARBAGE] * block_size for _ in range(blocks)]

    def content(self, block: int) -> tuple[int, ...]:
        """What the slots of a block hold."""
        return tuple(self._slots[block])

    def put(self, block: int, content: Sequence[int]) -> None:
        """A transfer writes a whole block."""
        self._slots[block][: len(content)] = content

    def spoil(self, block: int) -> None:
        """Nobody knows any more what a block holds: a copy into it began, or failed."""
        self._slots[block] = [GARBAGE] * self.block_size

    def discard(self) -> None:
        """The memory is given back: whatever runs before `restore` reads garbage."""
        self.resident = False
        for block in range(len(self._slots)):
            self.spoil(block)

    def restore(self) -> None:
        """There is memory again; nothing is written in it."""
        self.resident = True

    def new_epoch(self) -> None:
        """From now on the same tokens have other KV: new weights, say, after a reset."""
        self.root = self.prefixes.extend(self.root, -1)

    def run(self, rows: Sequence[Row]) -> list[Wrong | None]:
        """Run one step: each row's positions are written, and all positions before are read.

        The rows of a step write before they read, as attention kernels do, so that one may share
        a block that another one fills in the same step. Returns for each row None, or the first
        position that did not hold its own prefix's KV. What a row with a wrong read writes is
        garbage, as its numbers would be.
        """
        size = self.block_size
        wrong: list[Wrong | None] = [None] * len(rows)
        chains = []
        for i, row in enumerate(rows):
            end = min(row.end, len(row.tokens))
            chains.append(self.prefixes.chain(row.tokens[:end], row.root or self.root))
            if not self.resident:
                wrong[i] = Wrong(row.start, -1, "the cache's memory is given back")
            elif end < row.end:
                wrong[i] = Wrong(end, -1, "no token is known for the position")
            elif row.end > len(row.table) * size:
                wrong[i] = Wrong(
                    len(row.table) * size, -1, "the block table ends before the position"
                )
            for position in range(row.start, min(end, len(row.table) * size)):
                self._slots[row.table[position // size]][position % size] = chains[i][position]
        again = True
        while again:
            again = False
            for i, row in enumerate(rows):
                limit = min(row.start, len(row.table) * size, len(chains[i]))
                if wrong[i] is None:
                    wrong[i] = self._first_wrong(row.table, chains[i], limit)
                    again = again or wrong[i] is not None
                if wrong[i] is not None:
                    for position in range(row.start, min(row.end, len(row.table) * size)):
                        self._slots[row.table[position // size]][position % size] = GARBAGE
        return wrong

    def _first_wrong(self, table: Sequence[int], chain: Sequence[int], end: int) -> Wrong | None:
        for position in range(end):
            block = table[position // self.block_size]
            held = self._slots[block][position % self.block_size]
            if held != chain[position]:
                tokens = self.prefixes.tokens(held)
                return Wrong(
                    position,
                    block,
                    "it holds garbage"
                    if not tokens
                    else "it holds its own KV of before a reset"
                    if tokens == self.prefixes.tokens(chain[position])
                    else f"it holds the KV of {list(tokens)}",
                )
        return None

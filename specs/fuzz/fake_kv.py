"""A KV cache without numbers: every slot remembers for which token prefix it was written.

A prefix is an int that stands for a whole token sequence (a node of a trie), 0 for garbage. So
"this position holds this request's own KV" is one comparison, and a block that was freed too
early, loaded too late or cached under another hash shows as a prefix that does not belong there.
"""

from __future__ import annotations

from collections.abc import Sequence

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
            tokens.append(token)
        return tuple(reversed(tokens))


class FakeKV:
    """The contents of a pool of blocks, `block_size` slots each."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.prefixes = Prefixes()
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

    def run(
        self, table: Sequence[int], tokens: Sequence[int], start: int, end: int
    ) -> tuple[int, int, str] | None:
        """Compute positions `start` to `end` of `tokens`: read all before, write these.

        Returns None, or the first position that did not hold this prefix's KV, its block (-1:
        the table has none), and why. After a wrong read what is written is garbage, as its
        numbers would be.
        """
        size = self.block_size
        if end > len(tokens):
            return len(tokens), -1, "no token is known for the position"
        chain = self.prefixes.chain(tokens[:end])
        wrong: tuple[int, int, str] | None = None
        for position in range(end):
            row, slot = divmod(position, size)
            if row >= len(table):
                return wrong or (position, -1, "the block table ends before the position")
            block = table[row]
            if position >= start:
                self._slots[block][slot] = GARBAGE if wrong else chain[position]
            elif wrong is None and self._slots[block][slot] != chain[position]:
                held = self.prefixes.tokens(self._slots[block][slot])
                wrong = (
                    position,
                    block,
                    f"it holds the KV of {list(held)}" if held else "it holds garbage",
                )
        return wrong

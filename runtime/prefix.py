"""Which block holds which prefix: the keys of full blocks, and the index of what can be hit.

The key of a block is the hash of all tokens up to its end, behind a root that is a digest of all
else that makes KV what it is (model, dtype, block size, salt, weights). So one key stands for a
whole prefix, in every tier.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import blake3
import numpy as np
import numpy.typing as npt
import xxhash


class RunningHash(Protocol):
    """A hash that can be read while it goes on."""

    def update(self, data: bytes, /) -> object: ...

    def digest(self) -> bytes: ...


#: By name. xxh3_128 is fast but no cryptographic hash: on a device hit the tokens are compared
#: as well. Where tenants may attack each other, choose another or give each tenant a salt.
HASHES: dict[str, Callable[[bytes], RunningHash]] = {
    "xxh3_128": xxhash.xxh3_128,
    "blake3": blake3.blake3,
    "sha256": hashlib.sha256,
}


class KeyChain:
    """The keys of one sequence's full blocks: one running hash, read at the end of each block."""

    __slots__ = ("hash", "keys", "root")

    def __init__(self, root: bytes, running_hash: RunningHash) -> None:
        self.root = root
        self.keys: list[bytes] = []
        self.hash = running_hash


class BlockHasher:
    """Makes the keys of one model's blocks; the epoch of the weights is part of their root."""

    def __init__(self, algorithm: str, model_digest: str, dtype: str, block_size: int) -> None:
        if algorithm not in HASHES:
            raise ValueError(f"hash_algorithm {algorithm!r}; known are {', '.join(HASHES)}")
        self._new_hash = HASHES[algorithm]
        self._compares_tokens = algorithm == "xxh3_128"
        self._block_bytes = 4 * block_size
        self._model = (algorithm, model_digest, dtype, block_size)

    @property
    def compares_tokens(self) -> bool:
        """Whether a hit is one only if the tokens agree as well."""
        return self._compares_tokens

    @property
    def block_bytes(self) -> int:
        """Bytes of the tokens of one block."""
        return self._block_bytes

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - lives as long as its engine
    def root(self, salt: bytes, epoch: int) -> bytes:
        """What a chain starts from: differs for every salt and every epoch of the weights."""
        return hashlib.sha256(repr((self._model, salt, epoch)).encode()).digest()

    def chain(self, salt: bytes, epoch: int) -> KeyChain:
        """A sequence's chain, of no block yet."""
        root = self.root(salt, epoch)
        return KeyChain(root, self._new_hash(root))

    def extend(self, chain: KeyChain, tokens: bytes) -> None:
        """The sequence goes on with the full blocks in `tokens`, int32 little-endian."""
        width = self._block_bytes
        update, digest, append = chain.hash.update, chain.hash.digest, chain.keys.append
        for start in range(0, len(tokens) - width + 1, width):
            update(tokens[start : start + width])
            append(digest())


class PrefixIndex:
    """The published blocks by key. A key has one block, a block at most one key."""

    def __init__(self, num_blocks: int, compares_tokens: bool) -> None:
        self._compares = compares_tokens
        self._block: dict[bytes, int] = {}
        self._key: list[bytes | None] = [None] * num_blocks
        self._parent: list[bytes | None] = [None] * num_blocks
        self._tokens: list[bytes] = [b""] * num_blocks
        #: By block, whether it can be hit.
        self.cached: npt.NDArray[np.bool_] = np.zeros(num_blocks, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._block)

    def key_of(self, block: int) -> bytes | None:
        """The key under which the block can be hit, or None."""
        return self._key[block]

    def block_of(self, key: bytes) -> int | None:
        """The block that can be hit under the key, or None."""
        return self._block.get(key)

    def are_hits(self, blocks: list[int], keys: Sequence[bytes]) -> bool:
        """Whether each of the blocks can be hit under the key that stands in its place."""
        return list(map(self._block.get, keys)) == blocks

    def is_cached(self, block: int) -> bool:
        """Whether the block can be hit."""
        return self._key[block] is not None

    def match(self, keys: Sequence[bytes], root: bytes, tokens: bytes, most: int) -> list[int]:
        """The blocks of the longest published prefix, at most `most` of them.

        `keys` start behind `root`; `tokens` are those that they cover, int32 little-endian.
        """
        # All look-ups at once cost less than stopping at the first miss.
        found: list[Any] = list(map(self._block.get, keys[:most]))
        blocks: list[int] = found[: found.index(None)] if None in found else found
        if self._compares and blocks:
            return self._verified(keys, root, tokens, blocks)
        return blocks

    def _verified(
        self, keys: Sequence[bytes], root: bytes, tokens: bytes, blocks: list[int]
    ) -> list[int]:
        """The leading blocks that really hold these tokens after the same parent."""
        width = len(tokens) // len(keys)
        held = list(map(self._tokens.__getitem__, blocks))
        held_behind = list(map(self._parent.__getitem__, blocks))
        parents = [root, *keys[: len(blocks) - 1]]
        # Compared as a whole, because nearly always all of them agree.
        if held_behind == parents and b"".join(held) == tokens[: len(blocks) * width]:
            return blocks
        for number, parent in enumerate(parents):
            start = number * width
            if held_behind[number] != parent or held[number] != tokens[start : start + width]:
                return blocks[:number]
        return blocks

    def publish(self, block: int, key: bytes, parent: bytes, tokens: bytes) -> bool:
        """The block can be hit under the key. False when another block has it already."""
        if self._block.setdefault(key, block) != block:
            return False
        self._key[block] = key
        self.cached[block] = True
        if self._compares:
            self._parent[block] = parent
            self._tokens[block] = tokens
        return True

    def drop(self, blocks: Iterable[int]) -> None:
        """These blocks cannot be hit any more; those that could not are passed over."""
        for block in blocks:
            key = self._key[block]
            if key is not None:
                del self._block[key]
                self._key[block] = self._parent[block] = None
                self._tokens[block] = b""
                self.cached[block] = False

    def clear(self) -> None:
        """No block can be hit any more."""
        blocks = len(self._key)
        self._block.clear()
        self._key = [None] * blocks
        if self._compares:
            self._parent = [None] * blocks
            self._tokens = [b""] * blocks
        self.cached[:] = False

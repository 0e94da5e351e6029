"""Keys and the index of what can be hit."""

import numpy as np
import pytest
from kvproof.runtime.prefix import HASHES, BlockHasher, PrefixIndex

SIZE = 4


def tokens(*ids: int) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def keys_of(hasher: BlockHasher, ids: list[int], salt: bytes = b"", epoch: int = 0) -> list[bytes]:
    chain = hasher.chain(salt, epoch)
    hasher.extend(chain, tokens(*ids))
    return chain.keys


@pytest.mark.parametrize("algorithm", HASHES)
def test_a_key_stands_for_the_whole_prefix(algorithm: str) -> None:
    hasher = BlockHasher(algorithm, "model", "float32", SIZE)
    one = keys_of(hasher, [1, 2, 3, 4, 5, 6, 7, 8])
    other = keys_of(hasher, [9, 2, 3, 4, 5, 6, 7, 8])
    assert len(one) == 2
    assert one == keys_of(hasher, [1, 2, 3, 4, 5, 6, 7, 8, 9]), "an unfinished block has no key"
    assert one[1] != other[1], "the second block's tokens are the same, its prefix is not"


@pytest.mark.parametrize("algorithm", HASHES)
def test_keys_can_be_made_bit_by_bit(algorithm: str) -> None:
    hasher = BlockHasher(algorithm, "model", "float32", SIZE)
    chain = hasher.chain(b"", 0)
    hasher.extend(chain, tokens(1, 2, 3, 4))
    hasher.extend(chain, tokens(5, 6, 7, 8))
    assert chain.keys == keys_of(hasher, [1, 2, 3, 4, 5, 6, 7, 8])


def test_salt_weights_model_dtype_and_block_size_are_part_of_every_key() -> None:
    hashers = [
        BlockHasher("xxh3_128", "model", "float32", SIZE),
        BlockHasher("xxh3_128", "other", "float32", SIZE),
        BlockHasher("xxh3_128", "model", "bfloat16", SIZE),
        BlockHasher("blake3", "model", "float32", SIZE),
    ]
    first = [keys_of(hasher, [1, 2, 3, 4])[0] for hasher in hashers]
    first += [keys_of(hashers[0], [1, 2, 3, 4], b"tenant")[0]]
    first += [keys_of(hashers[0], [1, 2, 3, 4], b"", 1)[0]]
    assert len(set(first)) == len(first)


def test_an_unknown_algorithm_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"md5.*known are xxh3_128"):
        BlockHasher("md5", "model", "float32", SIZE)


def test_the_longest_published_prefix_is_found() -> None:
    index = PrefixIndex(8, compares_tokens=True)
    hasher = BlockHasher("xxh3_128", "model", "float32", SIZE)
    root = hasher.root(b"", 0)
    ids = list(range(12))
    keys, data = keys_of(hasher, ids), tokens(*ids)
    index.publish(5, keys[0], root, tokens(0, 1, 2, 3))
    index.publish(3, keys[1], keys[0], tokens(4, 5, 6, 7))
    assert index.match(keys, root, data, 3) == [5, 3]
    assert index.match(keys, root, data, 1) == [5]
    index.drop([5])
    assert index.match(keys, root, data, 3) == [], "what follows a gap is no prefix"


def test_a_key_keeps_the_block_that_was_published_first() -> None:
    index = PrefixIndex(8, compares_tokens=False)
    assert index.publish(1, b"key", b"root", b"")
    assert not index.publish(2, b"key", b"root", b"")
    assert index.block_of(b"key") == 1
    assert not index.is_cached(2)


def test_equal_hashes_of_different_tokens_are_no_hit() -> None:
    """The fast hash is no cryptographic one: the tokens are compared."""
    index = PrefixIndex(8, compares_tokens=True)
    index.publish(1, b"a collision", b"root", tokens(1, 2, 3, 4))
    assert index.match([b"a collision"], b"root", tokens(9, 9, 9, 9), 1) == []
    assert index.match([b"a collision"], b"root", tokens(1, 2, 3, 4), 1) == [1]


def test_equal_hashes_of_different_parents_are_no_hit() -> None:
    index = PrefixIndex(8, compares_tokens=True)
    index.publish(1, b"first", b"root", tokens(1, 2, 3, 4))
    index.publish(2, b"a collision", b"another first", tokens(5, 6, 7, 8))
    data = tokens(1, 2, 3, 4, 5, 6, 7, 8)
    assert index.match([b"first", b"a collision"], b"root", data, 2) == [1]

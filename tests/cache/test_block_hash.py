"""Equal hashes mean equal contents, equal history and equal permission."""

from itertools import product

from octavo.cache.block import CacheScope, MediaSpan, block_hash, extend_hashes, root_hash
from octavo.cache.manager import CacheManager, CacheOptions
from tests.fakes import FULL


def test_fields_of_a_root_do_not_run_together():
    roots = {
        root_hash(*fields)
        for fields in [("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""), ("", "abc"), (), ("",), ("", "")]
    }
    assert len(roots) == 8


def test_a_block_depends_on_every_token_and_on_all_before_it():
    roots = [root_hash("model", salt) for salt in ("", "tenant")]
    chains = set()
    for root, first, second in product(roots, product((0, 1, 1 << 20), repeat=2), product((0, 256), repeat=2)):
        hashes = []
        for _ in range(2):
            extend_hashes(hashes, root, [*first, *second, 7], 2)
        assert hashes[0] == block_hash(root, first)
        chains.add(tuple(hashes))
    assert len(chains) == 2 * 9 * 4
    assert len({last for _, last in chains}) == len(chains)


def test_the_same_digits_in_other_numbers_are_another_block():
    root = root_hash("model", "")
    assert block_hash(root, (1, 23)) != block_hash(root, (12, 3))
    assert block_hash(root, (1, 2, 3)) != block_hash(root, (1, 23))
    assert block_hash(root, (1 << 8,)) != block_hash(root, (1, 0))
    assert len({root_hash("X", ""), root_hash("", "X"), root_hash("X"), root_hash("aX"), root_hash("a", "X")}) == 5


def test_a_salt_may_be_long_and_hold_anything():
    assert root_hash("x" * (1 << 20)) != root_hash("x" * (1 << 20) + "y")
    assert root_hash("\ud800") != root_hash("\ud801")


def test_media_adapters_and_salts_are_in_the_chain():
    image, other = (MediaSpan(4, 6, digest) for digest in (b"\1" * 32, b"\2" * 32))
    scopes = [
        CacheScope(),
        CacheScope("a"),
        CacheScope(adapter="a"),
        CacheScope(media=(image,)),
        CacheScope(media=(other,)),
        CacheScope(media=(MediaSpan(3, 6, image.digest),)),
        CacheScope(media=(image, MediaSpan(10, 2, image.digest))),
    ]
    tokens = list(range(17))
    for writer in scopes:
        cache = CacheManager((FULL,), CacheOptions(16, 4))
        held = cache.open(writer)
        cache.reserve(held, 0, 17)
        cache.publish(held, tokens, 17)
        found = [cache.match_prefix(cache.open(reader), tokens).tokens for reader in scopes]
        assert found[scopes.index(writer)] == 16
        # What stands before the first difference in media is the same; salts and adapters share nothing.
        for reader, length in zip(scopes, found, strict=True):
            alike = (reader.salt, reader.adapter) == (writer.salt, writer.adapter)
            assert length == (16 if reader == writer else _common(writer, reader) if alike else 0)


def _common(writer, reader):
    return next(
        start for start in range(0, 16, 4) if writer.media_in(start, start + 4) != reader.media_in(start, start + 4)
    )

"""Equal hashes mean equal contents, equal history and equal permission."""

from itertools import product

from octavo.cache.block import block_hash, extend_hashes, root_hash


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


def test_a_salt_may_be_long_and_hold_anything():
    assert root_hash("x" * (1 << 20)) != root_hash("x" * (1 << 20) + "y")
    assert root_hash("\ud800") != root_hash("\ud801")

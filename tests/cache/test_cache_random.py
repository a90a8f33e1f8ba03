"""Random programs of operations on the cache, beside a model that remembers what was written into every block."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import CacheTerms, PrefixMatch, SequenceBlocks
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, visible, window

SIZE = 2
LAYOUTS = [(FULL,), (window(3),), (FULL, window(5)), (FULL, FULL), (FULL, window(1), window(4))]
tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class Sequence:
    """A sequence under way: the model computes its tokens and writes them into blocks."""

    def __init__(self, held: SequenceBlocks, tokens: list[int]) -> None:
        self.held, self.tokens, self.computed = held, tokens, 0


class CacheMachine(RuleBasedStateMachine):
    """Checks that every read finds what this very sequence's tokens would have written."""

    sequences = Bundle("sequences")

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        blocks=st.integers(3, 16),
        caching=st.sampled_from([True, True, False]),
        eviction=st.sampled_from(["lru", "lfu", "priority-frequency", "priority-frequency"]),
        budget=st.sampled_from([0.0, 0.3, 1.0]),
    )
    def start(self, layout, blocks, caching, eviction, budget):
        self.groups = layout
        options = CacheOptions(max(blocks, len(layout)), SIZE, caching, eviction, pin_budget=budget)
        self.cache = CacheManager(layout, options)
        self.now = 0.0
        self.live: list[Sequence] = []
        # What stands in a block: group, entry, salt, epoch of its writer, and all tokens up to its end.
        self.contents: dict[int, tuple[int, int, str, int, tuple[int, ...]]] = {}
        self.epoch = 0
        self.epochs: dict[int, int] = {}

    @rule(
        target=sequences,
        tokens=tokens_of,
        salt=st.sampled_from(["", "a"]),
        chunk=st.integers(1, 14),
        terms=st.builds(
            CacheTerms,
            urgency=st.integers(-1, 1),
            returns=st.booleans(),
            retention=st.sampled_from([0.0, 0.0, 5.0, 50.0]),
            pinned=st.integers(0, 14),
        ),
    )
    def begin(self, tokens, salt, chunk, terms):
        sequence = Sequence(self.cache.open(salt, terms), tokens)
        match = self.cache.match_prefix(sequence.held, tokens)
        assert match.tokens == self.longest(tokens, salt)
        count = min(chunk, len(tokens) - match.tokens)
        self.take(sequence, match, count)
        return sequence

    @rule(target=sequences, donor=sequences, share=st.integers(1, 14), tokens=tokens_of, chunk=st.integers(1, 6))
    def fork(self, donor, share, tokens, chunk):
        share = min(share, donor.computed)
        sequence = Sequence(self.cache.open(donor.held.scope), donor.tokens[:share] + tokens)
        if donor not in self.live or not share:
            return sequence
        match = self.cache.fork(sequence.held, donor.held, share)
        needed = {
            (group, read // SIZE)
            for group, kind in enumerate(self.groups)
            for read in visible(kind, share)
            if read < share
        }
        needed |= {(group, share // SIZE) for group in range(len(self.groups)) if share % SIZE}  # is copied
        gone = any(entry < donor.held.tables[group].first for group, entry in needed)
        assert (match is None) == (gone or self.epochs[id(donor)] != self.epoch)
        if match is not None:
            assert match.tokens == share
            self.take(sequence, match, min(chunk, len(tokens)))
        return sequence

    def take(self, sequence: Sequence, match: PrefixMatch, count: int) -> None:
        """Let a sequence take over a match and compute `count` more tokens, if there is room."""
        room = self.cache.room(sequence.held, match.tokens, match)
        gained = self.reserve(sequence, match.tokens, count, match)
        assert (gained is not None) == (count <= room)
        copies = self.cache.take_copies()
        if gained is None:
            assert not copies
            return
        assert [list(blocks) for blocks in gained] == [table.blocks for table in sequence.held.tables]
        self.live.append(sequence)
        self.epochs[id(sequence)] = self.epoch
        sequence.computed = match.tokens
        assert len(copies) == (len(self.groups) if match.tokens % SIZE else 0)
        for copy in copies:
            self.contents[copy.target] = self.contents[copy.source]
        self.compute(sequence, count)

    def reserve(self, sequence, start, count, match=None):
        """As the cache's; what is pinned stays as long as anyone else holds something."""
        others = any(table.held() for other in self.live if other is not sequence for table in other.held.tables)
        pinned = dict.fromkeys(self.cache._contents.pool.pins._until)
        gained = self.cache.reserve(sequence.held, start, count, match)
        assert all(block in self.cache._contents.index for block in pinned) or not others
        return gained

    @rule(sequence=sequences, tokens=tokens_of)
    def grow(self, sequence, tokens):
        if sequence not in self.live:
            return
        sequence.tokens += tokens[:4]
        count = len(sequence.tokens) - sequence.computed
        room = self.cache.room(sequence.held, sequence.computed)
        gained = self.reserve(sequence, sequence.computed, count)
        assert (gained is not None) == (count <= room)
        if gained is not None:
            self.compute(sequence, count)

    @rule(sequence=consumes(sequences), forget=st.sampled_from([False, False, True]))
    def end(self, sequence, forget):
        if sequence in self.live:
            self.live.remove(sequence)
            self.cache.release(sequence.held, forget)
            assert not any(table.held() for table in sequence.held.tables)

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def wait(self, seconds):
        self.now += seconds
        self.cache.advance(self.now)
        assert all(until > self.now for until in self.cache._contents.pool.pins._until.values())

    @rule()
    def reset(self):
        assert self.cache.reset_prefix_cache()
        self.epoch += 1

    def compute(self, sequence: Sequence, count: int) -> None:
        end = sequence.computed + count
        for position in range(sequence.computed, end):
            for group, table in enumerate(sequence.held.tables):
                entry = position // SIZE
                block = table.blocks[entry]
                readers = sum(block in other.held() for member in self.live for other in member.held.tables)
                assert readers == 1, "a block that others read is written"
                epoch = self.epochs[id(sequence)]
                prefix = tuple(sequence.tokens[: position + 1])
                self.contents[block] = (group, entry, sequence.held.scope.salt, epoch, prefix)
        for position in range(sequence.computed, end):
            self.check_reads(sequence, position)
        sequence.computed = end
        if end >= sequence.held.publish_at:
            self.cache.publish(sequence.held, sequence.tokens, end)

    def check_reads(self, sequence: Sequence, position: int) -> None:
        for group, kind in enumerate(self.groups):
            for read in visible(kind, position):
                entry = read // SIZE
                written = self.contents[sequence.held.tables[group].blocks[entry]]
                assert written[:3] == (group, entry, sequence.held.scope.salt)
                assert written[4][: read + 1] == tuple(sequence.tokens[: read + 1])

    def longest(self, tokens: list[int], salt: str) -> int:
        """Brute force over what is findable, by what the model knows of its contents."""
        known = {self.contents[block] for block in self.cache._contents.index._places}
        for length in range((len(tokens) - 1) // SIZE, 0, -1):
            needed = {
                (group, entry, salt, self.epoch, tuple(tokens[: (entry + 1) * SIZE]))
                for group, kind in enumerate(self.groups)
                for entry in {read // SIZE for read in visible(kind, length * SIZE) if read < length * SIZE}
            }
            if needed <= known:
                return length * SIZE
        return 0

    @invariant()
    def nothing_is_lost(self):
        if hasattr(self, "cache"):
            check_blocks(self.cache, [sequence.held for sequence in self.live])

    def teardown(self):
        if hasattr(self, "cache"):
            for sequence in self.live:
                self.cache.release(sequence.held)
            self.cache.advance(self.now + 100.0)
            assert self.cache.available == self.cache.num_blocks


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, derandomize=True)
TestCacheMachine = CacheMachine.TestCase

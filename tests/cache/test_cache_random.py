"""Random programs of operations on the cache, beside a model that remembers what was written into every block."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from octavo.cache.manager import CacheManager, CacheOptions
from octavo.cache.table import CacheTerms, NewBlocks, PrefixMatch, SequenceBlocks
from tests.cache.accounting import check_blocks
from tests.fakes import FULL, chunked, state, visible, window

SIZE = 2
LAYOUTS = [
    *[(FULL,), (window(3),), (FULL, window(5)), (FULL, FULL), (FULL, window(1), window(4)), (FULL, chunked(6))],
    *[(FULL, state()), (chunked(4), window(3), state(2))],
]
HYBRIDS = [(FULL, state()), (state(2),), (chunked(4), window(3), state(2)), (window(5), state(3))]
tokens_of = st.lists(st.integers(0, 1), min_size=1, max_size=14)


class Sequence:
    """A sequence under way: the model computes its tokens and writes them into blocks."""

    def __init__(self, held: SequenceBlocks, tokens: list[int]) -> None:
        self.held, self.tokens, self.computed = held, tokens, 0
        self.state: tuple[int, ...] = ()  # pages


class CacheMachine(RuleBasedStateMachine):
    """Checks that every read finds what this very sequence's tokens would have written."""

    sequences = Bundle("sequences")

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        blocks=st.integers(3, 16),
        caching=st.sampled_from([True, True, False]),
        eviction=st.sampled_from(["lru", "lfu", "priority-frequency", "priority-frequency"]),
        budget=st.sampled_from([0.0, 0.3, 1.0]),
        interval=st.integers(1, 3),
    )
    def start(self, layout, blocks, caching, eviction, budget, interval):
        self.set_up(layout, blocks, caching, eviction, budget, interval)

    def set_up(self, layout, blocks, caching, eviction, budget, interval):
        self.groups = [group for group in layout if not group.is_state]
        self.pages = sum(group.pages for group in layout if group.is_state)
        blocks = max(blocks, len(self.groups) + self.pages)
        options = CacheOptions(blocks, SIZE, caching, eviction, pin_budget=budget, state_interval=interval)
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
        stops=st.booleans(),
        terms=st.builds(
            CacheTerms,
            urgency=st.integers(-1, 1),
            returns=st.booleans(),
            retention=st.sampled_from([0.0, 0.0, 5.0, 50.0]),
            pinned=st.integers(0, 14),
        ),
    )
    def begin(self, tokens, salt, chunk, stops, terms):
        sequence = Sequence(self.cache.open(salt, terms), tokens)
        match = self.cache.match_prefix(sequence.held, tokens)
        assert match.tokens == self.longest(tokens, salt)
        count = min(chunk, len(tokens) - match.tokens)
        if stops:
            whole, count = count, self.cache.until_state(sequence.held, match.tokens, count)
            assert 0 < count <= whole
        self.take(sequence, match, count)
        return sequence

    @rule(
        target=sequences,
        donor=sequences,
        share=st.one_of(st.integers(1, 14), st.just(99)),
        tokens=tokens_of,
        chunk=st.integers(1, 6),
    )
    def fork(self, donor, share, tokens, chunk):
        share = min(share, donor.computed)
        sequence = Sequence(self.cache.open(donor.held.scope), donor.tokens[:share] + tokens)
        if donor not in self.live or not share:
            return sequence
        match = self.cache.fork(sequence.held, donor.held, share, donor.computed)
        needed = {
            (group, read // SIZE)
            for group, kind in enumerate(self.groups)
            for read in visible(kind, share)
            if read < share
        }
        needed |= {(group, share // SIZE) for group in range(len(self.groups)) if share % SIZE}  # is copied
        gone = any(entry < donor.held.tables[group].first for group, entry in needed)
        gone |= self.pages > 0 and not self.has_state(donor, share)
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
        tables = gained[: len(self.groups)]
        assert [list(blocks) for blocks in tables] == [table.blocks for table in sequence.held.tables]
        self.live.append(sequence)
        self.epochs[id(sequence)] = self.epoch
        sequence.computed = match.tokens
        tails = len(self.groups) if match.tokens % SIZE else 0
        assert len(copies) == tails + (self.pages if match.state_moves else 0)
        for copy in copies:
            self.contents[copy.target] = self.contents[copy.source]
        self.compute(sequence, count, gained)

    def has_state(self, donor: Sequence, tokens: int) -> bool:
        """The donor holds what the model would have left after so many of its tokens."""
        prefix = tuple(donor.tokens[:tokens])
        return any(all(self.contents[page][4] == prefix for page in pages) for pages in donor.held.states.values())

    def reserve(self, sequence, start, count, match=None):
        """As the cache's; what is pinned stays as long as anyone else holds something."""
        others = any(other.held.count() for other in self.live if other is not sequence)
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
            self.compute(sequence, count, gained)

    @rule(sequence=consumes(sequences), forget=st.sampled_from([False, False, True]))
    def end(self, sequence, forget):
        if sequence in self.live:
            self.live.remove(sequence)
            self.cache.release(sequence.held, forget)
            assert not sequence.held.count()

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def wait(self, seconds):
        self.now += seconds
        self.cache.advance(self.now)
        assert all(until > self.now for until in self.cache._contents.pool.pins._until.values())

    @rule()
    def reset(self):
        assert self.cache.reset_prefix_cache()
        self.epoch += 1

    def compute(self, sequence: Sequence, count: int, gained: NewBlocks) -> None:
        end = sequence.computed + count
        self.compute_state(sequence, end, gained[-1] if self.pages and gained else ())
        for position in range(sequence.computed, end):
            for group, table in enumerate(sequence.held.tables):
                entry = position // SIZE
                block = table.blocks[entry]
                readers = sum(block in member.held.held() for member in self.live)
                assert readers == 1, "a block that others read is written"
                epoch = self.epochs[id(sequence)]
                prefix = tuple(sequence.tokens[: position + 1])
                self.contents[block] = (group, entry, sequence.held.scope.salt, epoch, prefix)
        for position in range(sequence.computed, end):
            self.check_reads(sequence, position)
        sequence.computed = end
        if end >= sequence.held.publish_at:
            self.cache.publish(sequence.held, sequence.tokens, end)

    def compute_state(self, sequence: Sequence, end: int, told: tuple[int, ...]) -> None:
        """Read the state before the step where a device would, and write the one after it."""
        count, salt, epoch = self.pages, sequence.held.scope.salt, self.epochs[id(sequence)]
        assert len(told) in (0, count, 2 * count)
        if sequence.computed:
            read = told[:count] if len(told) == 2 * count else sequence.state or told
            for row, page in enumerate(read, len(self.groups)):
                written = self.contents[page]
                assert (written[0], written[2]) == (row, salt)
                assert written[4] == tuple(sequence.tokens[: sequence.computed])
        if told:
            sequence.state = told[-count:]
        for row, page in enumerate(sequence.state, len(self.groups)):
            assert sum(page in other.held.held() for other in self.live) == 1, "a page that others read is written"
            assert page not in self.cache._contents.index, "a page that can be found is written"
            self.contents[page] = (row, (end - 1) // SIZE, salt, epoch, tuple(sequence.tokens[:end]))

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
            needed |= {
                (row, length - 1, salt, self.epoch, tuple(tokens[: length * SIZE]))
                for row in range(len(self.groups), len(self.groups) + self.pages)
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


class StateMachine(CacheMachine):
    """The same with recurrent states, and with room for them."""

    @initialize(layout=st.sampled_from(HYBRIDS), blocks=st.integers(10, 30), interval=st.integers(1, 3))
    def start(self, layout, blocks, interval):
        self.set_up(layout, blocks, True, "priority-frequency", 0.3, interval)


StateMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
TestStateMachine = StateMachine.TestCase

"""The law of pages: whatever happens, each is free, idle or used, and never two of them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plimsoll_runtime.engine.page_allocator import PageAllocator

NUM_PAGES = 7


class Pages(RuleBasedStateMachine):
    """Holders take, share, keep and drop pages; a plain model of who holds what is compared after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(NUM_PAGES)
        self.held: list[int] = []
        self.kept: set[int] = set()

    @rule(count=st.integers(0, NUM_PAGES), after=st.none() | st.integers(0, NUM_PAGES - 1))
    def allocate(self, count: int, after: int | None) -> None:
        count = min(count, self.allocator.num_free)
        pages = self.allocator.allocate(count, after)
        assert len(set(pages)) == count
        assert not set(pages) & (set(self.held) | self.kept)
        self.held += pages

    @precondition(lambda self: self.held or self.kept)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted({*self.held, *self.kept})))
        self.allocator.acquire(page)
        self.held.append(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.allocator.release(page)
        self.held.remove(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.held))
        self.allocator.keep(page)
        self.kept.add(page)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.kept)))
        self.allocator.forget(page)
        self.kept.remove(page)

    @invariant()
    def every_page_is_somewhere(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.num_used == len(set(self.held))
        assert self.allocator.num_idle == len(self.kept - set(self.held))
        for page in range(NUM_PAGES):
            assert self.allocator.references(page) == self.held.count(page)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

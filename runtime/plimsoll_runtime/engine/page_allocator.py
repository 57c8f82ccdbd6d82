"""Who holds which page of the KV cache: reference counts over numbered pages, never their content.

In: how many pages, after which one, and releases. Out: page numbers. It knows no sequences, tokens or tensors.

A page is in exactly one state (check_integrity proves it):

    free --allocate--> used (references >= 1) --last release--> free
                        ^                     \\-- if kept ----> idle (content may be reused) --forget--> free
                        \\------------------------ acquire -----/

Contiguous runs are preferred, because attention on a CPU reads a run without copying it: growth takes the next page
where that is free, and a new run starts in the middle of the longest gap, which leaves its left neighbour room to grow.
"""

from collections import OrderedDict


class PageAllocator:
    """Pages 0..num_pages-1. Not safe across threads: the engine's thread owns it."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = bytearray(b"\x01" * num_pages)
        self._num_free = num_pages
        self._references = [0] * num_pages
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Pages without content worth keeping."""
        return self._num_free

    @property
    def num_idle(self) -> int:
        """Pages that nobody uses but whose content is kept for reuse."""
        return len(self._idle)

    @property
    def num_used(self) -> int:
        """Pages that at least one sequence refers to."""
        return self.num_pages - self._num_free - len(self._idle)

    def references(self, page: int) -> int:
        """How many sequences refer to `page`."""
        return self._references[page]

    def allocate(self, count: int, after: int | None) -> list[int]:
        """`count` free pages with one reference each, following page `after` where possible.

        The caller has made sure that `count` pages are free (a shortage here is a broken invariant).
        """
        assert count <= self._num_free, f"{count} pages asked of {self._num_free} free ones"
        pages: list[int] = []
        following = None if after is None else after + 1
        while len(pages) < count:
            page = following if following is not None and self._is_free(following) else self._start(count - len(pages))
            self._take(page)
            pages.append(page)
            following = page + 1
        return pages

    def acquire(self, page: int) -> None:
        """Add a reference to a page that is used or idle."""
        assert not self._free[page], f"page {page} is free and has no content to share"
        self._idle.pop(page, None)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a reference; after the last one the page is idle if it is kept, else free."""
        assert self._references[page] > 0, f"page {page} is released more often than acquired"
        self._references[page] -= 1
        if self._references[page] > 0:
            return
        if page in self._kept:
            self._idle[page] = None
        else:
            self._give_back(page)

    def keep(self, page: int) -> None:
        """Let a used page outlive its references, until `forget`."""
        assert self._references[page] > 0, f"page {page} is not used"
        self._kept.add(page)

    def forget(self, page: int) -> None:
        """The content of a kept page is not wanted any more: free now if idle, else with its last reference."""
        self._kept.remove(page)
        if page in self._idle:
            del self._idle[page]
            self._give_back(page)

    def oldest_idle(self) -> int:
        """The idle page that was released first."""
        return next(iter(self._idle))

    def check_integrity(self) -> None:
        """Assert that every page is in exactly one state."""
        assert sum(self._free) == self._num_free
        assert set(self._idle) <= self._kept
        for page in range(self.num_pages):
            states = (bool(self._free[page]), page in self._idle, self._references[page] > 0)
            assert sum(states) == 1, f"page {page} is free, idle, used = {states}"
            assert not (self._free[page] and page in self._kept), f"page {page} is free and kept"

    def _is_free(self, page: int) -> bool:
        return page < self.num_pages and bool(self._free[page])

    def _start(self, count: int) -> int:
        """Where a new run begins: mid-gap behind a used page if the second half holds `count`, else at its start."""
        start, length = self._longest_gap()
        half = length // 2
        return start + half if start > 0 and length - half >= count else start

    def _longest_gap(self) -> tuple[int, int]:
        best_start, best_length, start = 0, 0, self._free.find(1)
        while start != -1:
            end = self._free.find(0, start)
            length = (self.num_pages if end == -1 else end) - start
            if length > best_length:
                best_start, best_length = start, length
            start = -1 if end == -1 else self._free.find(1, end)
        return best_start, best_length

    def _take(self, page: int) -> None:
        self._free[page] = 0
        self._num_free -= 1
        self._references[page] = 1

    def _give_back(self, page: int) -> None:
        self._free[page] = 1
        self._num_free += 1

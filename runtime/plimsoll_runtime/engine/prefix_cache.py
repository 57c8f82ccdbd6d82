"""Which full pages hold which beginnings: prompts that start alike compute their common pages once.

Owns the map from a chain of hashes to a page. In: token ids and the pages that hold their keys and values. Out: pages
to start from. It knows no sequences and no tensors. Invariants: only full, computed pages are registered, so a shared
page is never written again; the chain starts from a salt, so one tenant's pages are never found by another; what is
evicted is what was released first, and of one sequence its end before its beginning.
"""

from array import array
from collections.abc import Sequence as Items
from hashlib import blake2b

from plimsoll_runtime.engine.page_allocator import PageAllocator
from plimsoll_runtime.engine.state_slots import StateSlots

_DIGEST_BYTES = 16


class PageChain:
    """The digests of one sequence's full pages, computed as far as they are asked for."""

    def __init__(self, salt: str, page_size: int) -> None:
        self._page_size = page_size
        self._digests = [blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()]

    def digests(self, token_ids: Items[int], num_pages: int) -> list[bytes]:
        """One digest per page for the first `num_pages` pages of `token_ids`, each over all tokens up to its end."""
        for page in range(len(self._digests) - 1, num_pages):
            content = array("q", token_ids[page * self._page_size : (page + 1) * self._page_size]).tobytes()
            self._digests.append(blake2b(self._digests[-1] + content, digest_size=_DIGEST_BYTES).digest())
        return self._digests[1 : num_pages + 1]


class PrefixCache:
    """Finds, keeps and evicts pages by digest, on top of the allocator's idle pages.

    With `states`, a beginning is known only as far as the last page whose end has a checkpoint."""

    def __init__(self, allocator: PageAllocator, states: StateSlots | None = None) -> None:
        self._allocator = allocator
        self._states = states
        self._page_by_digest: dict[bytes, int] = {}
        self._digest_by_page: dict[int, bytes] = {}

    def find(self, digests: Items[bytes]) -> list[int]:
        """Pages of the longest known beginning. They are not acquired: do so before anything is allocated."""
        pages: list[int] = []
        for digest in digests:
            page = self._page_by_digest.get(digest)
            if page is None:
                break
            pages.append(page)
        while pages and self._states is not None and not self._states.has_checkpoint(pages[-1]):
            pages.pop()
        return pages

    def page_of(self, digest: bytes) -> int | None:
        """The page that is found under a digest."""
        return self._page_by_digest.get(digest)

    def register(self, digest: bytes, page: int) -> None:
        """Keep a full page under its digest. A second page with the same content stays private."""
        if digest in self._page_by_digest or page in self._digest_by_page:
            return
        self._page_by_digest[digest] = page
        self._digest_by_page[page] = digest
        self._allocator.keep(page)

    def forget(self, page: int) -> None:
        """Never find this page again; unknown pages are fine."""
        digest = self._digest_by_page.pop(page, None)
        if digest is not None:
            del self._page_by_digest[digest]
            self._allocator.forget(page)
            if self._states is not None:
                self._states.forget(page)

    def make_room(self, count: int) -> bool:
        """Evict until `count` pages are free. False, and nothing evicted, when even all idle pages would not do."""
        if count > self._allocator.num_free + self._allocator.num_idle:
            return False
        while self._allocator.num_free < count:
            self.forget(self._allocator.oldest_idle())
        return True

    def check_integrity(self) -> None:
        """Assert that both maps say the same."""
        assert {page: digest for digest, page in self._page_by_digest.items()} == self._digest_by_page

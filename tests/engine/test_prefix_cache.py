"""Beginnings that were computed before: found only where they are truly the same, never the whole prompt."""

from typing import Any

import pytest

from doubles.admitted_requests import admitted
from doubles.engine_runs import EngineRun
from plimsoll_runtime.engine.page_allocator import PageAllocator
from plimsoll_runtime.engine.prefix_cache import PageChain, PrefixCache
from plimsoll_runtime.events import PrefillDone

FIRST = [1, 2, 3, 4, 5, 6, 7]
CASES: list[tuple[str, list[int], dict[str, Any], int]] = [
    ("the same prompt, but for its last token", FIRST, {}, 6),
    ("an exact number of pages leaves one page to compute", FIRST[:6], {}, 4),
    ("a longer prompt", [*FIRST, 7, 7, 9], {}, 8),
    ("the answer is known too", [*FIRST, 7, 7, 7, 9], {}, 10),
    ("B24 no more than the shared beginning", [1, 2, 3, 9, 9, 9, 9], {}, 2),
    ("B24 the same page behind another beginning", [9, 9, 3, 4, 5, 6, 7], {}, 0),
    ("a shorter prompt than a page", [1], {}, 0),
    ("another tenant", FIRST, {"tenant": "other"}, 0),
    ("a prompt that is scored", FIRST, {"prompt_logprobs": 0}, 0),
]


@pytest.mark.parametrize(("prompt", "values", "cached_tokens"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_cached_tokens(prompt: list[int], values: dict[str, Any], cached_tokens: int) -> None:
    """B24: a stale or foreign entry was taken for the request's own beginning."""
    run = EngineRun()
    run.engine.submit(admitted("first", FIRST, max_output_tokens=5))
    run.finish()
    run.engine.submit(admitted("second", prompt, max_output_tokens=1, **values))
    run.finish()
    assert [e.cached_tokens for e in run.events if isinstance(e, PrefillDone)] == [0, cached_tokens]
    assert run.steps[-1] == [("second", 0, cached_tokens, len(prompt) - cached_tokens)]


def test_prefix_caching_can_be_turned_off() -> None:
    run = EngineRun(prefix_caching=False)
    for name in ("first", "second"):
        run.engine.submit(admitted(name, FIRST, max_output_tokens=1))
        run.finish()
    assert [e.cached_tokens for e in run.events if isinstance(e, PrefillDone)] == [0, 0]
    assert run.engine.load().pages_cached == 0


def test_running_sequences_share_pages() -> None:
    run = EngineRun(running_slots=2)
    run.engine.submit(admitted("first", FIRST, max_output_tokens=20))
    run.step()
    run.engine.submit(admitted("second", FIRST, max_output_tokens=20))
    run.step()
    # 8 tokens of the first, and of the second only what follows the 6 shared tokens.
    assert run.engine.load().pages_used == 4 + 1
    run.finish()
    assert run.tokens("first") == run.tokens("second")


def cache_of(num_pages: int) -> tuple[PageAllocator, PrefixCache]:
    allocator = PageAllocator(num_pages)
    return allocator, PrefixCache(allocator)


def test_eviction_takes_what_was_released_first_and_ends_before_beginnings() -> None:
    allocator, cache = cache_of(5)
    old, new = allocator.allocate(3, None), allocator.allocate(2, None)
    digests = PageChain("", 1).digests([1, 2, 3, 4, 5], 5)
    for digest, page in zip(digests, old + new, strict=True):
        cache.register(digest, page)
    for page in [*reversed(old), *reversed(new)]:
        allocator.release(page)
    assert cache.make_room(2)
    assert (cache.find(digests), cache.find(digests[3:])) == (old[:1], new)
    assert not cache.make_room(6)
    assert cache.find(digests) == old[:1]


def test_what_was_used_again_is_evicted_last() -> None:
    allocator, cache = cache_of(2)
    pages = allocator.allocate(2, None)
    digests = [PageChain(str(page), 1).digests([1], 1)[0] for page in pages]
    for digest, page in zip(digests, pages, strict=True):
        cache.register(digest, page)
        allocator.release(page)
    allocator.acquire(pages[0])
    allocator.release(pages[0])
    assert cache.make_room(1)
    assert (cache.find(digests[:1]), cache.find(digests[1:])) == (pages[:1], [])


def test_a_second_page_with_the_same_content_stays_private() -> None:
    allocator, cache = cache_of(2)
    pages = allocator.allocate(2, None)
    digest = PageChain("", 1).digests([1], 1)[0]
    for page in pages:
        cache.register(digest, page)
    for page in pages:
        allocator.release(page)
    assert (allocator.num_idle, allocator.num_free) == (1, 1)


def test_a_chain_depends_on_salt_and_on_every_token_before() -> None:
    chains = [
        PageChain(salt, 2).digests(ids, 2)[1]
        for salt in ("a", "b")
        for ids in ([1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4], [1, 2**40, 3, 4])
    ]
    assert len(set(chains)) == len(chains)

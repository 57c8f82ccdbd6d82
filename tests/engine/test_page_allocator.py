"""Where pages are placed: runs that attention can read without copying."""

from collections.abc import Callable

import pytest

from plimsoll_runtime.engine.page_allocator import PageAllocator


def test_growth_takes_the_next_page() -> None:
    allocator = PageAllocator(16)
    pages = allocator.allocate(2, None)
    for _ in range(5):
        pages += allocator.allocate(1, pages[-1])
    assert pages == list(range(7))


def test_new_runs_leave_room_for_their_neighbours_to_grow() -> None:
    allocator = PageAllocator(64)
    runs = [allocator.allocate(2, None) for _ in range(4)]
    for _ in range(10):
        for run in runs:
            run.extend(allocator.allocate(1, run[-1]))
    assert all(run == list(range(run[0], run[0] + 12)) for run in runs)


def test_a_run_that_does_not_fit_is_split_and_nothing_is_lost() -> None:
    allocator = PageAllocator(6)
    pages = allocator.allocate(6, None)
    for page in pages[::2]:
        allocator.release(page)
    assert sorted(allocator.allocate(3, None)) == pages[::2]
    allocator.check_integrity()


FAULTS: dict[str, Callable[[PageAllocator], object]] = {
    "more than there is": lambda allocator: allocator.allocate(2, None),
    "sharing a free page": lambda allocator: allocator.acquire(0),
    "releasing a free page": lambda allocator: allocator.release(0),
    "keeping a free page": lambda allocator: allocator.keep(0),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broken_invariant_is_an_assertion(fault: Callable[[PageAllocator], object]) -> None:
    with pytest.raises(AssertionError, match="page"):
        fault(PageAllocator(1))

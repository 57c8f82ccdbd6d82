"""What makes a server due, and how a stall is noticed: queue, comparison with a listing, health endpoint."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from plimsoll_operator.desired import CHILD_KINDS
from plimsoll_operator.handlers import new_registry, new_settings
from plimsoll_operator.health import health_server
from plimsoll_operator.watch_check import WatchCheck
from plimsoll_operator.work_queue import Key, WorkQueue

A, B = ("here", "a"), ("here", "b")


async def emptied(queue: WorkQueue, num_workers: int, until: threading.Event) -> None:
    """Run workers until the event is set."""
    workers = [asyncio.create_task(queue.run_worker()) for _ in range(num_workers)]
    assert await asyncio.to_thread(until.wait, 20)
    await asyncio.sleep(0.1)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_additions_during_work_are_one_more_call_and_never_two_at_once() -> None:
    """B100. A pod that flaps adds its server again and again."""
    calls: list[Key] = []
    at_work, most, done = [0], [0], threading.Event()

    def work(key: Key) -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        for _ in range(9 if len(calls) < 2 else 0):
            loop.call_soon_threadsafe(queue.add, key)
        time.sleep(0.05)
        calls.append(key)
        at_work[0] -= 1
        if len(calls) == 3:
            done.set()

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(4) as threads:
        queue = WorkQueue(work, threads)
        for _ in range(9):
            queue.add(A)
        await emptied(queue, 4, done)
    assert (calls, most) == ([A] * 3, [1])


async def test_a_failure_comes_back_later_and_does_not_hold_up_others(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Key] = []
    done = threading.Event()

    def work(key: Key) -> None:
        calls.append(key)
        if key == A and calls.count(A) == 1:
            raise OSError("no route")
        if calls.count(A) == 2:
            done.set()

    with ThreadPoolExecutor(2) as threads:
        queue = WorkQueue(work, threads)
        queue.add(A)
        queue.add(B)
        await emptied(queue, 1, done)
    assert calls == [A, B, A]
    assert "here/a: no route" in caplog.text
    assert queue.oldest_seconds() == 0.0


@pytest.mark.parametrize(
    ("told", "listings", "lag"),
    [
        pytest.param([(A, "1")], [({A: "1"}, 10), ({A: "1"}, 500)], 0, id="told"),
        pytest.param([], [({A: "1"}, 10), ({A: "1"}, 200)], 190, id="B107-never-told"),
        pytest.param([(A, "1")], [({A: "2"}, 10), ({A: "2"}, 200)], 190, id="B107-told-of-an-older-one"),
        pytest.param([(A, "1")], [({A: "2"}, 10), ({A: "3"}, 200)], 0, id="changes-quickly"),
        pytest.param([(A, "1"), (A, None)], [({}, 10), ({}, 200)], 0, id="gone"),
    ],
)
def test_a_watch_that_does_not_tell_of_what_is_listed_is_noticed(
    told: list[tuple[Key, str | None]], listings: list[tuple[dict[Key, str], float]], lag: float
) -> None:
    """B107. Before, a watch died in silence and the operator lived on, handling nothing."""
    check = WatchCheck()
    for key, version in told:
        check.told(key, version)
    for listed, now in listings:
        check.compare(listed, now)
    assert check.lag_seconds(200) == lag


def test_what_the_watch_tells_after_a_listing_ends_the_lag_at_once() -> None:
    """Before, it lasted until the next listing, so that a resync of three minutes looked like a stuck watch."""
    check = WatchCheck()
    check.compare({A: "1", B: "1"}, now=0)
    check.told(A, "1")
    assert check.lag_seconds(10) == 10
    check.told(B, "2")
    assert check.lag_seconds(10) == 0


@pytest.mark.parametrize(
    ("path", "fault", "status"), [("/healthz", None, 200), ("/healthz", "it is stuck", 503), ("/other", None, 404)]
)
def test_health_says_why(path: str, fault: str | None, status: int) -> None:
    with health_server(0, lambda: fault) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5)
    assert answer.status_code == status
    assert fault is None or fault in answer.text


def test_the_watches_bring_nothing_that_writes() -> None:
    """B96. A timer, a daemon or a handler of changes would put a finalizer or annotations on every server."""
    registry = new_registry(lambda key, version: None, lambda key: None, Path("kubeconfig"))
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    watched = {str(handler.selector) for handler in registry._watching.get_all_handlers()}
    assert len(watched) == 1 + len(CHILD_KINDS) + 1  # servers, children, pods
    settings = new_settings()
    assert settings.posting.enabled is False
    assert settings.watching.inactivity_timeout == 70

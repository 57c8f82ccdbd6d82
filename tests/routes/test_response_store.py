"""The store behind `previous_response_id`: its bounds, its tenants, its time."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.routes.response_store import ResponseStore


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_store(clock: Clock | None = None, **bounds: Any) -> ResponseStore:
    return ResponseStore(Clock() if clock is None else clock, **bounds)


def put(store: ResponseStore, response_id: str, *, tenant: str = "t", text: str = "") -> bool:
    return store.put(tenant, {"id": response_id}, [{"role": "user", "content": text}])


def test_it_gives_back_what_was_put() -> None:
    store = make_store()
    assert put(store, "r1", text="hi 🌍")
    assert store.response("t", "r1") == {"id": "r1"}
    assert store.conversation("t", "r1") == [{"role": "user", "content": "hi 🌍"}]


def test_what_it_gives_is_a_copy() -> None:
    store = make_store()
    put(store, "r1")
    given_out = store.conversation("t", "r1")
    assert given_out is not None
    given_out.append({"role": "user", "content": "forged"})
    assert store.conversation("t", "r1") == [{"role": "user", "content": ""}]


def test_a_tenant_sees_only_its_own() -> None:
    store = make_store()
    put(store, "r1", tenant="alice")
    assert store.response("bob", "r1") is None
    assert store.conversation("bob", "r1") is None
    assert not store.delete("bob", "r1")
    assert store.response("alice", "r1") is not None


def test_what_was_deleted_is_gone() -> None:
    store = make_store()
    put(store, "r1")
    assert store.delete("t", "r1")
    assert not store.delete("t", "r1")
    assert store.response("t", "r1") is None
    assert (len(store), store.num_bytes) == (0, 0)


def test_nothing_is_given_out_after_its_time() -> None:
    clock = Clock()
    store = make_store(clock, keep_seconds=10)
    put(store, "r1")
    clock.now = 9.9
    assert store.response("t", "r1") is not None
    clock.now = 10.0
    assert store.response("t", "r1") is None
    assert not store.delete("t", "r1")
    put(store, "r2")
    assert len(store) == 1, "what is too old makes room"


def test_the_oldest_goes_first() -> None:
    store = make_store(max_responses=2)
    for response_id in ("r1", "r2", "r3"):
        put(store, response_id)
    assert [store.response("t", response_id) is not None for response_id in ("r1", "r2", "r3")] == [False, True, True]


def test_who_holds_most_makes_room() -> None:
    """One tenant that stores without end must not empty the memory of the others."""
    store = make_store(max_responses=4)
    put(store, "b1", tenant="bob")
    for number in range(10):
        put(store, f"a{number}", tenant="alice")
    assert store.response("bob", "b1") is not None
    assert len(store) == 4


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = make_store(max_bytes=200)
    put(store, "small")
    assert not put(store, "large", text="x" * 200)
    assert store.response("t", "small") is not None
    assert store.response("t", "large") is None


PUTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["r1", "r2", "r3", "r4"]), st.integers(0, 120), st.floats(0, 8)),
    max_size=40,
)


@given(PUTS)
def test_the_bounds_always_hold(puts: list[tuple[str, str, int, float]]) -> None:
    clock = Clock()
    store = make_store(clock, max_responses=3, max_bytes=400, keep_seconds=10)
    for tenant, response_id, size, pause in puts:
        clock.now += pause
        kept = put(store, response_id, tenant=tenant, text="x" * size)
        assert kept == (store.response(tenant, response_id) is not None)
        assert len(store) <= 3
        assert 0 <= store.num_bytes <= 400
    clock.now += 100
    put(store, "last")
    assert len(store) == 1

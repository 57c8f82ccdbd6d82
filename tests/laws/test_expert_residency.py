"""Laws of the slots, over random walks: nobody is lost, doubled or displaced while held, and the coldest goes first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.models.experts.residency import Residency

STEPS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["use", "stream", "drop", "hold"])), max_size=60)


@given(num_slots=st.integers(1, 6), steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_a_model_in_a_list_agrees(num_slots: int, steps: list[tuple[int, str]]) -> None:
    """The list is the order from cold to warm; `held` may not be displaced."""
    residency, order, held = Residency(num_slots), list[int](), set[int]()
    slots: dict[int, int] = {}
    for expert, what in steps:
        if expert not in order:
            displaced = next((other for other in order if other not in held), None)
            slot = residency.take(expert)
            assert (slot is None) == (len(order) == num_slots and displaced is None)
            if slot is None:
                continue
            if len(order) == num_slots:
                assert displaced is not None
                order.remove(displaced)
                assert slot == slots.pop(displaced)
            slots[expert] = slot
            order.append(expert)
        else:
            residency.hold(expert)
        match what:
            case "use":
                residency.let_go(expert, warm=True)
                order.remove(expert)
                order.append(expert)
                held.discard(expert)
            case "stream":
                residency.let_go(expert, warm=False)
                order.remove(expert)
                order.insert(0, expert)
                held.discard(expert)
            case "drop":
                residency.drop(expert)
                order.remove(expert)
                held.discard(expert)
                del slots[expert]
            case "hold":
                held.add(expert)
        assert residency.num_resident == len(order) <= num_slots
        assert {other: residency.slot_of(other) for other in order} == slots
        assert len(set(slots.values())) == len(slots)
        assert all((other in residency) == (other in order) for other in range(10))

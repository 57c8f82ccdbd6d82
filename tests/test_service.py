"""A client that leaves against an engine that answers, without chance: every event comes when the test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from doubles.server import CONTENTS_ONLY, Vocabulary
from plimsoll_runtime.admission.admit import Admission, ServedModel
from plimsoll_runtime.admission.deadlines import Patience
from plimsoll_runtime.admission.house import House
from plimsoll_runtime.admission.wait_estimate import SlotRules
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.contract.config import Limits
from plimsoll_runtime.contract.endpoints import COMPLETIONS
from plimsoll_runtime.engine.load import EngineLoad
from plimsoll_runtime.events import (
    Begun,
    Broken,
    ChoiceEnded,
    Ended,
    EngineEvent,
    FinishDetail,
    Finished,
    Started,
    TextDelta,
    Token,
)
from plimsoll_runtime.generation import Generation
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest, TextPrompt, WireValue
from plimsoll_runtime.service import Service
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.model_text import ModelText
from plimsoll_runtime.text.structure.compiler import StructureCompiler

LETTER = ord("a")


class Engine:
    """Takes requests and aborts, and says nothing by itself."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.aborted: list[str] = []

    def submit(self, request: AdmittedRequest) -> None:
        self.submitted.append(request.request_id)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        self.aborted.append(request_id)

    def load(self) -> EngineLoad:
        return EngineLoad(0, 0, 0, 0.0, 0, 0, 0)

    def is_alive(self) -> bool:
        return True

    def seconds_since_last_step(self) -> float:
        return 0.0

    def stop(self) -> None: ...


class Scene:
    """A service, its engine, and requests on their way in."""

    def __init__(self) -> None:
        vocabulary = Vocabulary()
        tokenizer = vocabulary.tokenizer()
        text = ModelText(tokenizer, ChatTemplate(CONTENTS_ONLY, None, None))
        admission = Admission(
            limits=Limits(context_length=16, max_output_default=4, max_output_limit=None, over_budget="clamp"),
            model=ServedModel("m", vocabulary.size, tokenizer.eos_token_ids, {}),
            encoder=text,
            patience=Patience(60, 60),
            sampling_defaults="neutral",
            new_seed=lambda: 0,
        )
        self.engine = Engine()
        self.service = Service(
            admission=admission,
            text=text,
            house=House(SlotRules(4), 0, admission.weight_of),
            meters=Meters(),
            clock=lambda: 0.0,
            structures=StructureCompiler(tokenizer, vocabulary.size, tokenizer.eos_token_ids),
            num_text_threads=1,
        )
        self.service.attach(self.engine)

    async def submit(self) -> "asyncio.Task[Generation | Refusal]":
        """A request that the engine has and has not started."""
        num_before = len(self.engine.submitted)
        request = GenerationRequest(COMPLETIONS, "m", "prompt", (TextPrompt("hi"),))
        task = asyncio.create_task(self.service.submit(request, "everyone"))
        while len(self.engine.submitted) == num_before:
            await asyncio.sleep(0.001)
        return task

    async def started(self) -> Generation:
        task = await self.submit()
        self.service.deliver([Started(self.engine.submitted[-1])])
        generation = await task
        assert isinstance(generation, Generation)
        return generation


def run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Scene())

    asyncio.run(main())


def whole(request_id: str) -> list[EngineEvent]:
    return [Token(request_id, 0, LETTER), Finished(request_id, 0, "length", FinishDetail("default", 1))]


async def read(generation: Generation) -> list[type]:
    return [type(event) async for event in generation.events()]


def test_a_client_that_leaves_while_its_request_starts_takes_no_event_from_others() -> None:
    """What happened before: the start met a cancelled future, and the rest of that step's events were lost."""

    async def scenario(scene: Scene) -> None:
        neighbour = await scene.started()
        leaving = await scene.submit()
        scene.service.deliver([Started(scene.engine.submitted[-1]), *whole(neighbour.request_id)])
        leaving.cancel()
        assert await asyncio.wait_for(read(neighbour), 5) == [Begun, TextDelta, ChoiceEnded, Ended]
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert scene.engine.aborted == [scene.engine.submitted[-1]]
        assert scene.service.house.inside == 0

    run(scenario)


def test_a_fault_of_one_answer_breaks_that_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened before: its client waited for ever, and so did those whose events came in the same step."""

    async def scenario(scene: Scene) -> None:
        faulty, neighbour = await scene.started(), await scene.started()
        monkeypatch.setattr(faulty, "_token", lambda event, now: 1 / 0)
        scene.service.deliver([*whole(faulty.request_id), *whole(neighbour.request_id)])
        assert await asyncio.wait_for(read(neighbour), 5) == [Begun, TextDelta, ChoiceEnded, Ended]
        assert await asyncio.wait_for(read(faulty), 5) == [Begun, Broken]
        assert scene.engine.aborted == [faulty.request_id]
        assert scene.service.house.inside == 0

    run(scenario)


def test_the_first_fault_in_the_order_of_checks_is_the_answer() -> None:
    """Fields, model, draining, place: each is judged although everything after it is wrong too."""

    async def scenario(scene: Scene) -> None:
        for _ in range(4):
            await scene.started()
        wrong_field = GenerationRequest(COMPLETIONS, "other", "prompt", (TextPrompt(""),), {"n": WireValue("n", 0)})
        faults_gone: list[dict[str, Any]] = [{}, {"wire": {}}, {"wire": {}, "model": "m"}]
        full = await scene.service.submit(replace(wrong_field, wire={}, model="m"), "everyone")
        scene.service.begin_drain()
        answers = [await scene.service.submit(replace(wrong_field, **gone), "everyone") for gone in faults_gone]
        assert [refusal.code for refusal in [*answers, full] if isinstance(refusal, Refusal)] == [
            "integer_below_min_value",
            "model_not_found",
            "unavailable",
            "rate_limit_exceeded",
        ]

    run(scenario)


def test_a_refused_prompt_gives_its_place_back() -> None:
    async def scenario(scene: Scene) -> None:
        request = GenerationRequest(COMPLETIONS, "m", "prompt", (TextPrompt("x" * 16),))
        refusal = await scene.service.submit(request, "everyone")
        assert isinstance(refusal, Refusal)
        assert refusal.code == "context_length_exceeded"
        assert scene.service.house.inside == 0

    run(scenario)

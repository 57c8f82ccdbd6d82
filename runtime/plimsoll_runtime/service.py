"""Where admission, text and engine meet: submit a request, read its answer as events.

Owns the life of a request between its route and the engine: place in the house, tokens off the event loop, admission,
waiting for the first slot, text, and the end. In: a `GenerationRequest` and a tenant. Out: a `Refusal`, or a
`Generation` whose events end in exactly one `Ended` or `Broken`. All its state belongs to the event loop's thread; the
engine's thread only posts events to the loop. It knows no dialect and no HTTP.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from plimsoll_runtime.admission.admit import Admission
from plimsoll_runtime.admission.checks import CheckedFields
from plimsoll_runtime.admission.deadlines import Times
from plimsoll_runtime.admission.house import House
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.engine.load import EngineLoad
from plimsoll_runtime.engine.thread import EngineStopped
from plimsoll_runtime.events import Broken, EngineEvent
from plimsoll_runtime.generation import Generation
from plimsoll_runtime.load_metrics import LoadCollector
from plimsoll_runtime.meters import Meters
from plimsoll_runtime.refusal import Refusal
from plimsoll_runtime.request import GenerationRequest
from plimsoll_runtime.text.model_text import ModelText
from plimsoll_runtime.text.reasoning import ReasoningFormat
from plimsoll_runtime.text.structure.compiler import Constraint, StructureCompiler
from plimsoll_runtime.text.structure.grammars import grammar_of
from plimsoll_runtime.text.tool_calls.formats import ToolCallFormat

STOPPING = "the server is stopping: send the request again"
Result = TypeVar("Result")
_LOG = logging.getLogger("plimsoll")


class EngineHandle(Protocol):
    """What the service needs of the engine's thread; every method may be called from the event loop."""

    def submit(self, request: AdmittedRequest) -> None: ...

    def abort(self, request_id: str, choice: int | None = None) -> None: ...

    def load(self) -> EngineLoad: ...

    def stop(self) -> None: ...

    def is_alive(self) -> bool: ...

    def seconds_since_last_step(self) -> float: ...


class Service:
    """One loaded model and the requests it is answering."""

    def __init__(
        self,
        *,
        admission: Admission,
        text: ModelText,
        house: House,
        meters: Meters,
        clock: Callable[[], float],
        structures: StructureCompiler,
        tool_calls: ToolCallFormat | None = None,
        reasoning: ReasoningFormat | None = None,
        num_text_threads: int = 2,
    ) -> None:
        self.admission = admission
        self.text = text
        self.meters = meters
        self.house = house
        self.clock = clock
        self._structures = structures
        self._tool_calls = tool_calls
        self._reasoning = reasoning
        self._live: dict[str, Generation] = {}
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.crashed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._text_threads = ThreadPoolExecutor(num_text_threads, thread_name_prefix="plimsoll-text")
        self._engine: EngineHandle | None = None

    def attach(self, engine: EngineHandle) -> None:
        """Gives the service its engine, whose thread delivers to `deliver` and `on_crash`."""
        self._engine = engine
        self.meters.watch(LoadCollector(engine.load))

    @property
    def engine(self) -> EngineHandle:
        assert self._engine is not None, "attach comes before the first request"
        return self._engine

    @property
    def is_accepting(self) -> bool:
        """False while draining and after the engine died."""
        return not self._is_draining and not self.crashed.is_set()

    def deliver(self, events: list[EngineEvent]) -> None:
        """Called on the engine's thread after each step."""
        self._loop.call_soon_threadsafe(self._dispatch, events)

    def on_crash(self, error: BaseException) -> None:
        """Called on the engine's thread as its last word."""
        self._loop.call_soon_threadsafe(self._break_all, Broken("engine_failure", f"the engine stopped: {error}"), True)

    async def submit(self, request: GenerationRequest, tenant: str) -> Generation | Refusal:
        """Waits until the request's first sequence has a running slot. Cancelling the call aborts the request."""
        arrival = self.clock()
        checked = self.admission.check(request)
        if isinstance(checked, Refusal):
            return checked
        if not self.is_accepting:
            return self._unavailable()
        times = self.admission.times(request, checked, arrival)
        no_place = self.house.enter(self.engine.load(), tenant, times)
        if no_place is not None:
            return no_place
        generation: Generation | None = None
        try:
            admitted = await self._admit(request, checked, uuid.uuid4().hex, tenant, times)
            if isinstance(admitted, Refusal):
                return admitted
            if not self.is_accepting:
                return self._unavailable()
            generation = Generation(
                admitted,
                request,
                checked.stops,
                self.text.tokenizer,
                tool_calls=self._tool_calls,
                reasoning=self._reasoning,
                times=times,
                service=self,
            )
            refusal = await self._start(generation)
            return generation if refusal is None else refusal
        except asyncio.CancelledError:
            if generation is None:
                self.meters.ended(request.route, "cancelled", self.clock() - arrival)
            else:
                generation.close()
            raise
        finally:
            if generation is None:
                self.house.leave()

    async def decide(self, request: GenerationRequest) -> AdmittedRequest | Refusal:
        """What admission would say, without a place, a slot or a trace."""
        checked = self.admission.check(request)
        if isinstance(checked, Refusal):
            return checked
        times = self.admission.times(request, checked, self.clock())
        return await self._admit(request, checked, "", "", times)

    async def count(self, request: GenerationRequest) -> list[list[int]] | Refusal:
        """Token ids of each prompt after the template; works while every slot is taken."""
        checked = self.admission.check(request)
        if isinstance(checked, Refusal):
            return checked
        return await self._off_loop(lambda: self.admission.count(request))

    async def _admit(
        self, request: GenerationRequest, checked: CheckedFields, request_id: str, tenant: str, times: Times
    ) -> AdmittedRequest | Refusal:
        constraint = await self._constraint(request)
        if isinstance(constraint, Refusal):
            return constraint
        return await self._off_loop(
            lambda: self.admission.admit(
                request, checked, request_id=request_id, tenant=tenant, times=times, constraint=constraint
            )
        )

    async def _constraint(self, request: GenerationRequest) -> Constraint | Refusal | None:
        structure = request.structure
        if structure is None:
            return None
        compiler = self._structures
        return await self._loop.run_in_executor(
            compiler.executor, lambda: compiler.compile(lambda: grammar_of(structure), structure.param)
        )

    async def _start(self, generation: Generation) -> Refusal | None:
        self._live[generation.request_id] = generation
        self._idle.clear()
        try:
            self.engine.submit(generation.admitted)
        except EngineStopped as stopped:
            generation.refuse(Refusal(code="engine_failure", message=str(stopped)))
        # Shielded: a client that leaves cancels this wait alone, and the start may still arrive in the same moment.
        refusal = await asyncio.shield(generation.started)
        if refusal is None:
            for prompt in generation.admitted.prompts:
                self.meters.decided(generation.request.route, prompt.budget.limited_by)
        return refusal

    def forget(self, generation: Generation) -> None:
        """Called by a generation when it has ended, whatever the way."""
        self.house.leave()
        for output_tokens, by_itself in generation.lengths():
            admitted = generation.admitted
            self.house.lengths.learn(admitted.route, admitted.tenant, output_tokens, by_itself=by_itself)
        del self._live[generation.request_id]
        if not self._live:
            self._idle.set()

    def too_late(self, generation: Generation, now: float) -> Refusal:
        """What a request hears that waited in vain for a slot."""
        return self.house.too_late(self.engine.load(), generation.admitted.tenant, generation.times, now)

    def begin_drain(self) -> None:
        """No new work; what waits is refused at once, what runs goes on."""
        self._is_draining = True
        for generation in [generation for generation in self._live.values() if not generation.has_begun]:
            generation.refuse(self._unavailable())

    async def drain(self, seconds: float) -> None:
        """Waits until what runs has ended, `seconds` at most, then breaks the rest with an error event."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            self._break_all(Broken("unavailable", STOPPING), False)

    def close(self) -> None:
        """Drops the texts that wait for a thread: the end of the process would wait for them. Nothing comes after."""
        self._text_threads.shutdown(wait=False, cancel_futures=True)
        self._structures.close()

    def _dispatch(self, events: list[EngineEvent]) -> None:
        now = self.clock()
        for event in events:
            generation = self._live.get(event.request_id)
            if generation is not None:
                self._tell(generation, event, now)

    def _tell(self, generation: Generation, event: EngineEvent, now: float) -> None:
        """A fault of ours in one answer breaks that answer, and no other of the same step."""
        try:
            generation.receive(event, now)
        except Exception:
            _LOG.exception("an answer could not be put together")
            generation.break_off(Broken("engine_failure", "the answer could not be put together"))

    def _break_all(self, broken: Broken, has_crashed: bool) -> None:
        if has_crashed:
            self.crashed.set()
        for generation in list(self._live.values()):
            generation.break_off(broken)

    def _unavailable(self) -> Refusal:
        if self.crashed.is_set():
            return Refusal(code="engine_failure", message="the engine stopped: the server is about to restart")
        return Refusal(code="unavailable", message=STOPPING)

    async def _off_loop(self, work: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._text_threads, work)

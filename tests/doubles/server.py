"""A whole server over a scripted model: real HTTP, real admission, real text, chosen tokens.

`scripted_server(...)` runs it in a thread on a free loopback port. The vocabulary is one token per byte, then the
pieces that the script writes, then the control tokens: so a prompt of n bytes has n tokens, and a piece may be half a
character. The chat template writes nothing but the contents, so chat prompts are countable too.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import tokenizers
import uvicorn
import uvloop
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from doubles.scripted_model import Script, ScriptedRunner
from plimsoll_runtime.__main__ import new_front, start_service
from plimsoll_runtime.admission.admit import ServedModel
from plimsoll_runtime.contract.config import DEFAULT_MAX_OUTPUT_TOKENS, Limits, RuntimeConfig
from plimsoll_runtime.engine.capacity import CapacityPlan, MemoryFacts
from plimsoll_runtime.engine.expert_plan import NOTHING_TO_OFFLOAD
from plimsoll_runtime.engine.host_kv import NoKV
from plimsoll_runtime.engine.settings import EngineSettings, make_schedule
from plimsoll_runtime.lifecycle import http_settings
from plimsoll_runtime.loading import LoadedModel
from plimsoll_runtime.routes.app import build_app
from plimsoll_runtime.routes.front import Front
from plimsoll_runtime.text.chat_template import ChatTemplate
from plimsoll_runtime.text.model_text import ModelText
from plimsoll_runtime.text.special_tokens import SpecialTokens
from plimsoll_runtime.text.token_bytes import byte_alphabet, byte_level_bytes
from plimsoll_runtime.text.tokenizer import Tokenizer

MODEL = "scripted"
CONTROL = ("<|end|>", "<|im_start|>", "<|im_end|>")
CONTENTS_ONLY = "{% for message in messages %}{{ message.content }}{% endfor %}"


class Vocabulary:
    """Ids of bytes, pieces and control tokens; `end_id` ends an answer."""

    def __init__(self, pieces: Sequence[str | bytes] = ()) -> None:
        self.pieces = list(dict.fromkeys(piece.encode() if isinstance(piece, str) else piece for piece in pieces))
        self._ids = {bytes([byte]): byte for byte in range(256)}
        for piece in self.pieces:
            self._ids.setdefault(piece, len(self._ids))
        self.end_id = len(self._ids)
        self.size = len(self._ids) + len(CONTROL)

    def ids(self, pieces: Sequence[str | bytes]) -> list[int]:
        """The tokens of a script."""
        return [self._ids[piece.encode() if isinstance(piece, str) else piece] for piece in pieces]

    def tokenizer(self) -> Tokenizer:
        """A byte-level tokenizer without merges: text always becomes single bytes."""
        alphabet = byte_alphabet()
        spelled = {"".join(alphabet[byte] for byte in piece): token_id for piece, token_id in self._ids.items()}
        library = tokenizers.Tokenizer(models.BPE(vocab=spelled, merges=[]))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = decoders.ByteLevel()
        library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
        special = SpecialTokens(
            bos_id=None,
            eos_id=self.end_id,
            end_ids=frozenset({self.end_id}),
            adds_bos=False,
            named={"eos_token": CONTROL[0]},
        )
        return Tokenizer(library, special, byte_level_bytes)


@dataclass(slots=True)
class ScriptedServer:
    """A running server; `url` is its address, `client` a client with that base."""

    url: str
    client: httpx.Client
    front: Front
    runner: ScriptedRunner
    vocabulary: Vocabulary
    loop: asyncio.AbstractEventLoop
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """The engine's load now."""
        assert self.front.service is not None
        return self.front.service.engine.load()

    @property
    def inside(self) -> int:
        """Requests in the house now."""
        assert self.front.service is not None
        return self.front.service.house.inside

    def wait_for_inside(self, count: int) -> None:
        """Until so many requests hold a place."""
        wait_until(lambda: self.inside == count)

    def on_loop(self, call: Callable[[], None]) -> None:
        """Runs `call` on the server's event loop."""
        self.loop.call_soon_threadsafe(call)


def always(vocabulary: Vocabulary, piece: str | bytes = "a") -> Script:
    """A runaway: the same piece for ever."""
    token_id = vocabulary.ids([piece])[0]
    return lambda _prompt, _position: token_id


def answers(vocabulary: Vocabulary, pieces: Sequence[str | bytes], *, ends: bool = True) -> Script:
    """These pieces, then the end token (or, for a script that does not end, the last piece for ever)."""
    ids = vocabulary.ids(pieces) + ([vocabulary.end_id] if ends else [])
    return lambda _prompt, position: ids[min(position, len(ids) - 1)]


@contextlib.contextmanager
def scripted_server(
    script: Callable[[Vocabulary], Script] = always,
    *,
    pieces: Sequence[str | bytes] = (),
    template: str = CONTENTS_ONLY,
    page_size: int = 2,
    kv_cache_tokens: int | None = None,
    before_step: Callable[[int], None] | None = None,
    ping_seconds: float = 15.0,
    is_loaded: bool = True,
    generation_defaults: Mapping[str, float] | None = None,
    **settings: Any,
) -> Iterator[ScriptedServer]:
    """A server for the time of a `with`. `settings` are fields of RuntimeConfig."""
    settings = {"context_length": 64, **settings}
    config = RuntimeConfig(model="file:///scripted", **{"served_model_name": MODEL, **settings})
    loaded, runner = scripted_model(
        config,
        script,
        pieces=pieces,
        template=template,
        page_size=page_size,
        kv_cache_tokens=kv_cache_tokens,
        generation_defaults=generation_defaults,
    )
    vocabulary = runner.vocabulary
    front = new_front(config)
    front.ping_seconds = ping_seconds
    thread = _ServerThread(front, loaded if is_loaded else None)
    thread.start()
    runner.before_step = before_step  # the warm-up is over: from here on the test's own steps count
    runner.num_steps = 0
    runner.steps.clear()
    try:
        # Loopback needs no certificates, and reading them costs more than a request.
        with httpx.Client(base_url=thread.url, timeout=30, verify=False) as client:
            yield ScriptedServer(thread.url, client, front, runner, vocabulary, thread.loop, settings)
    finally:
        thread.stop()


class _ServerThread:
    """Uvicorn on an event loop of its own."""

    def __init__(self, front: Front, loaded: LoadedModel | None) -> None:
        self._front = front
        self._loaded = loaded
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.loop = uvloop.new_event_loop()
        self.url = ""
        self._server = uvicorn.Server(
            http_settings(build_app(front), host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
        )

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(30)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self.loop.close()

    async def _serve(self) -> None:
        if self._loaded is not None:
            await start_service(self._front, self._loaded)
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await serving
        if self._front.service is not None:
            self._front.service.close()
            await asyncio.to_thread(self._front.service.engine.stop)


class VocabularyRunner(ScriptedRunner):
    """A scripted runner that keeps the vocabulary its script was written in."""

    def __init__(self, script: Script, vocabulary: Vocabulary) -> None:
        super().__init__(script, vocabulary.size)
        self.vocabulary = vocabulary


def scripted_model(
    config: RuntimeConfig,
    script: Callable[[Vocabulary], Script],
    *,
    pieces: Sequence[str | bytes] = (),
    template: str = CONTENTS_ONLY,
    page_size: int = 2,
    kv_cache_tokens: int | None = None,
    generation_defaults: Mapping[str, float] | None = None,
) -> tuple[LoadedModel, VocabularyRunner]:
    """What `load_model` gives for a real model, and the runner inside it."""
    vocabulary = Vocabulary(pieces)
    runner = VocabularyRunner(script(vocabulary), vocabulary)
    assert config.context_length is not None
    tokenizer = vocabulary.tokenizer()
    tokens = config.running_slots * config.context_length if kv_cache_tokens is None else kv_cache_tokens
    num_pages = -(-tokens // page_size)
    default, served_name = config.max_output_default, config.served_model_name
    limits = Limits(
        context_length=config.context_length,
        max_output_default=DEFAULT_MAX_OUTPUT_TOKENS if default is None else default,
        max_output_limit=config.max_output_limit,
        over_budget=config.over_budget,
    )
    loaded = LoadedModel(
        text=ModelText(tokenizer, ChatTemplate(template, None, None)),
        facts=ServedModel(
            MODEL if served_name is None else served_name,
            vocabulary.size,
            tokenizer.eos_token_ids,
            dict(generation_defaults or {}),
        ),
        limits=limits,
        plan=CapacityPlan(
            context_length=config.context_length,
            kv_capacity_tokens=tokens,
            num_pages=num_pages,
            page_size=page_size,
            kv_bytes=0,
            host_pages=0,
            facts=MemoryFacts(0, 0, 0, 1),
        ),
        settings=EngineSettings(
            running_slots=config.running_slots,
            context_length=config.context_length,
            num_pages=num_pages,
            num_tokens=vocabulary.size,
            page_size=page_size,
            step_tokens=16,
            prefix_caching=config.prefix_caching,
            schedule=make_schedule(config, limits.max_output_default),
            detects_runaways=config.runaway != "off",
        ),
        runner=runner,
        host=NoKV(),
        kernels={"name": "scripted"},
        offload={"mode": "none", "reason": NOTHING_TO_OFFLOAD},
        experts=None,
    )
    return loaded, runner


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Patience, not a measurement: fails when the condition does not come true."""
    patience = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < patience, "waited in vain"
        time.sleep(0.005)

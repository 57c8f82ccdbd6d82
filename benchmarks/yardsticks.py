"""Other programs on the same weights, to measure ours by: `transformers` generate, and llama.cpp.

Each runs in a process of its own: this file as a program, which reads one JSON command a line and answers with one.
`Yardstick` is the side that asks, an `Engine`. `missing(name)` says which package keeps one from being measured.
The libraries are imported only by the process that measures them.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timing import StreamTiming, peak_resident_bytes

PACKAGES = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
CONTEXT_LENGTH = 2048

Stream = Callable[[list[list[int]], int], list[StreamTiming]]


def missing(name: str) -> str | None:
    """The package that is not installed, or None when the yardstick can be measured."""
    return None if importlib.util.find_spec(PACKAGES[name]) else PACKAGES[name]


class Yardstick:
    """A started yardstick; see the program below."""

    def __init__(self, name: str, model: Path) -> None:
        self.name = name
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._read() != "ready":
            raise RuntimeError(f"{name} did not start; its exit code is {self._process.wait()}")
        self.start_seconds = time.perf_counter() - start

    def stream(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[StreamTiming]:
        assert self._process.stdin is not None
        print(json.dumps([[list(prompt) for prompt in prompts], num_tokens]), file=self._process.stdin, flush=True)
        return [StreamTiming(*timing) for timing in self._read()]

    def peak_resident_bytes(self) -> int:
        return peak_resident_bytes(self._process.pid)

    def stop(self) -> None:
        self._process.communicate()  # the end of its input ends it

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


def main(name: str, model: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    stream = load_transformers(model) if name == "transformers" else load_llama_cpp(model)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        prompts, num_tokens = json.loads(line)
        timings = stream(prompts, num_tokens)
        shown = [[timing.first_seconds, timing.last_seconds, timing.num_tokens] for timing in timings]
        print(json.dumps(shown), file=answers, flush=True)


def load_transformers(model: Path) -> Stream:
    """All prompts as one batch in float32; the clock is read after every step."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        str(model.parent), gguf_file=model.name, dtype=torch.float32
    )

    class Clock(transformers.StoppingCriteria):
        def __init__(self) -> None:
            self.start = time.perf_counter()
            self.times: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            self.times.append(time.perf_counter() - self.start)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    def stream(prompts: list[list[int]], num_tokens: int) -> list[StreamTiming]:
        token_ids = torch.tensor(prompts)
        clock = Clock()
        decoder.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
            pad_token_id=0,
        )
        return [StreamTiming(clock.times[0], clock.times[-1], len(clock.times))] * len(prompts)

    return stream


def load_llama_cpp(model: Path) -> Stream:
    """One prompt after another: the Python interface computes a single stream."""
    import llama_cpp  # noqa: PLC0415

    llama: Any = llama_cpp.Llama(
        model_path=str(model),
        n_ctx=CONTEXT_LENGTH,
        n_threads=os.cpu_count(),
        n_threads_batch=os.cpu_count(),
        verbose=False,
    )

    def stream(prompts: list[list[int]], num_tokens: int) -> list[StreamTiming]:
        start = time.perf_counter()
        timings = []
        for prompt in prompts:
            llama.reset()
            times: list[float] = []
            for _ in llama.generate(prompt, temp=0.0):
                times.append(time.perf_counter() - start)
                if len(times) == num_tokens:
                    break
            timings.append(StreamTiming(times[0], times[-1], len(times)))
        return timings

    return stream


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

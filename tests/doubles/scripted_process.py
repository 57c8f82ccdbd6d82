"""A server process over a scripted model, for tests of signals, exit codes and what a client sees of them.

`python scripted_process.py '{"load_seconds": 0.5, ...}'` prints its address on a line of its own and serves until it is
told to stop. Everything but the model is the real server, `run_server` included.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from doubles.server import always, scripted_model
from plimsoll_runtime.__main__ import grace_seconds, load_and_announce, new_front
from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.lifecycle import listen, run_server
from plimsoll_runtime.loading import LoadedModel
from plimsoll_runtime.routes.app import build_app


def main(options: dict[str, Any]) -> int:
    """`options`: load_seconds, fails_to_load, step_seconds, crash_at_step, port, and fields of RuntimeConfig."""
    load_seconds = options.pop("load_seconds", 0.0)
    fails_to_load = options.pop("fails_to_load", False)
    step_seconds = options.pop("step_seconds", 0.0)
    crash_at_step = options.pop("crash_at_step", None)
    config = RuntimeConfig(model="file:///scripted", served_model_name="scripted", **{"port": 0, **options})
    front = new_front(config)
    loaded, runner = scripted_model(config, always, page_size=64)

    def before_step(step: int) -> None:
        time.sleep(step_seconds)
        if step == crash_at_step:
            raise RuntimeError("the script says so")

    def load_model() -> LoadedModel:
        time.sleep(load_seconds)
        if fails_to_load:
            raise StartError("the model cannot be loaded: the script says so")
        return loaded

    async def load() -> None:
        await load_and_announce(front, sock, load_model)
        runner.num_steps = 0
        runner.before_step = before_step

    sock = listen(config.host, config.port)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        return loop.run(run_server(build_app(front), front, sock, load, grace_seconds(config)))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

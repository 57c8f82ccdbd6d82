"""Servers without a model, to measure what everything around a model costs. Run as a program with one of two names.

`plimsoll`: the whole server over the scripted model, one token per answer. `bare`: the yardstick, a FastAPI route that
reads the JSON body and answers with a constant. The program prints its address and ends with its standard input.
"""

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import fastapi
import torch
import uvicorn
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from doubles.server import MODEL, scripted_server
from plimsoll_runtime.contract.endpoints import CHAT_COMPLETIONS

NUM_CONNECTIONS = 64
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


def main(name: str) -> None:
    torch.set_num_threads(1)  # the scripted model's tiny tensors gain nothing from a second thread that spins
    if name == "plimsoll":
        with scripted_server(running_slots=NUM_CONNECTIONS, max_waiting=2 * NUM_CONNECTIONS, page_size=16) as server:
            announce_and_wait(server.url)
    else:
        serve_bare()


def announce_and_wait(url: str) -> None:
    print(f"{url}{CHAT_COMPLETIONS}", flush=True)
    sys.stdin.read()


def serve_bare() -> None:
    app = fastapi.FastAPI()

    @app.post(CHAT_COMPLETIONS)
    async def answer(request: fastapi.Request) -> dict[str, Any]:
        body = await request.json()
        return {
            "object": "chat.completion",
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "length"}],
        }

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2 * NUM_CONNECTIONS)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        thread = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[listener])))
        thread.start()
        announce_and_wait(f"http://127.0.0.1:{listener.getsockname()[1]}")
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])

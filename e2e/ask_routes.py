"""Asks each route of a server once and prints what it answers: `python ask_routes.py http://name.namespace.svc:8000`.

`make cluster-demo` runs it in a pod, so it needs only the standard library.
"""

import json
import sys
import urllib.request
from typing import Any

QUESTION = "What is the capital of France?"
CHAT = [{"role": "user", "content": QUESTION}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 24},
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 24},
    "/v1/messages": {"messages": CHAT, "max_tokens": 24},
    "/v1/responses": {"input": QUESTION, "max_output_tokens": 24},
}


def main(url: str, model: str) -> int:
    empty = 0
    for route, body in BODIES.items():
        granted, text = ask(f"{url}{route}", {"model": model, "temperature": 0, **body})
        empty += not text.strip()
        print(f"{route:<24} granted {granted} tokens: {' '.join(text.split())}", flush=True)
    return 1 if empty else 0


def ask(url: str, body: dict[str, Any]) -> tuple[str, str]:
    """How many tokens were granted, and the text."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.headers["X-Plimsoll-Max-Output-Tokens"], text_of(json.load(answer))


def text_of(answer: dict[str, Any]) -> str:
    """Of whichever dialect."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    parts = answer["content"] if "content" in answer else answer["output"][0]["content"]
    return "".join(part["text"] for part in parts if "text" in part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

"""The process in which a grammar is compiled first: what the library cannot bear ends this process, not the server.

In: a grammar on each line of standard input, as a JSON string. Out: a line of JSON each: the library's complaint, or
null. A grammar that takes more than COMPILE_SECONDS of processor time ends the process by SIGPROF, one that recurses
without end by SIGSEGV, one that takes too much memory by SIGABRT. It ends when its input does.
"""

import json
import resource
import signal
import sys

from llguidance import LLMatcher

from plimsoll_runtime.text.structure.library import library_limits, library_tokenizer

COMPILE_SECONDS = 1.0
MEMORY_BYTES = 512 * 1024 * 1024
_END_ID = 256


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tokens = [*(bytes([byte]) for byte in range(256)), b"end"]
    tokenizer = library_tokenizer(tokens, (), (_END_ID,), lambda text: list(text.encode()))
    limits = library_limits()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
        matcher = LLMatcher(tokenizer, json.loads(line), log_level=0, limits=limits)
        matcher.compute_bitmask()
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(matcher.get_error() or None), flush=True)


if __name__ == "__main__":
    main()

"""The servers of one cluster: started, watched and stopped by process id.

A process id alone may come to mean another process, so each is kept with its start time (field 22 of /proc/PID/stat)
and signalled only while both agree. The table is a file in the state folder: another run of the program can stop what
this one started.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plimsoll_cluster.commands import ClusterError, clean_environment, progress

_STOP_SECONDS = 10
_POLL_SECONDS = 0.1
_TELL_EVERY_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    pid: int
    start_ticks: int


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None when it is gone or only waits to be collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(server: Server) -> bool:
    return start_ticks(server.pid) == server.start_ticks


class ProcessTable:
    """The servers of the state folder `folder`, in the order in which they were started."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "processes.json"
        self._logs = folder / "logs"

    def servers(self) -> list[Server]:
        if not self._file.exists():
            return []
        return [Server(**row) for row in json.loads(self._file.read_text())]

    def start(self, name: str, command: Sequence[str | Path], *, ends_with_parent: bool = False) -> None:
        """Starts a server of its own session, its output in logs/NAME.log. `ends_with_parent`: killed if we die."""
        words = [str(word) for word in command]
        if ends_with_parent:
            words = ["setpriv", "--pdeathsig", "KILL", *words]
        self._logs.mkdir(parents=True, exist_ok=True)
        pid = _spawn(words, self.log_file(name))
        started = start_ticks(pid)
        if started is None:
            raise ClusterError(f"{name} ended at once: {self.tail(name)}")
        self._write([*self.servers(), Server(name, pid, started)])

    def stop(self, names: Iterable[str] | None = None) -> list[str]:
        """Stops the named servers (all, without names), last started first; returns the names that were alive."""
        wanted = None if names is None else set(names)
        chosen = [server for server in reversed(self.servers()) if wanted is None or server.name in wanted]
        stopped = [server.name for server in chosen if _stop(server)]
        self._write([server for server in self.servers() if server not in chosen])
        return stopped

    def dead(self) -> list[str]:
        return [server.name for server in self.servers() if not is_alive(server)]

    def log_file(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def tail(self, name: str, num_lines: int = 25) -> str:
        log = self.log_file(name)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join([f"the end of {log}:", *lines[-num_lines:]])

    def wait_until(self, what: str, holds: Callable[[], bool], *, blame: str, timeout_seconds: float) -> None:
        """Returns when `holds()`; raises with the log of `blame`, or of a server that died, when it will not."""
        began = told = time.monotonic()
        while not holds():
            for name in self.dead():
                raise ClusterError(f"{name} died while waiting until {what}; {self.tail(name)}")
            now = time.monotonic()
            if now - began > timeout_seconds:
                raise ClusterError(f"{timeout_seconds:.0f} s were not enough until {what}; {self.tail(blame)}")
            if now - told > _TELL_EVERY_SECONDS:
                told = now
                progress(f"waiting until {what} ({now - began:.0f} s)")
            time.sleep(_POLL_SECONDS)

    def _write(self, servers: Sequence[Server]) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps([asdict(server) for server in servers], indent=1))
        new.replace(self._file)


def _spawn(words: list[str], log: Path) -> int:
    """Starts a process that may outlive us, which is why no object of ours stands for it."""
    environment = clean_environment()
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        raise ClusterError(f"{words[0]} is not there: `make cluster-binaries` or `make cluster-packages` brings it")
    return os.posix_spawn(
        program,
        words,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _stop(server: Server) -> bool:
    """True when `server` was alive. It is gone on return, killed if it ignored the request."""
    was_alive = is_alive(server)
    if was_alive:
        os.kill(server.pid, signal.SIGTERM)
        if not _gone_within(server, _STOP_SECONDS):
            os.kill(server.pid, signal.SIGKILL)
            _gone_within(server, _STOP_SECONDS)
    _collect(server)
    return was_alive


def _gone_within(server: Server, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_alive(server) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS / 2)
    return not is_alive(server)


def _collect(server: Server) -> None:
    """A child of ours that has ended stays a zombie until someone asks; another's child is not ours to ask about."""
    with contextlib.suppress(ChildProcessError):
        has_ended = start_ticks(server.pid) is None
        os.waitpid(server.pid, 0 if has_ended else os.WNOHANG)  # its last threads may take a moment

"""Runs a program to its end and turns a failure into one sentence with what the program said.

Every program started for the cluster, here or as a server, gets `clean_environment`: a search path and little more, so
that no ambient KUBECONFIG, credential or Go setting reaches it.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_KEPT_VARIABLES = ("HOME", "LANG", "PATH", "TMPDIR")
_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


class ClusterError(Exception):
    """The cluster, or a piece that it needs, did not do what was asked; the message says which and what to do."""


def clean_environment(ambient: Mapping[str, str] = os.environ) -> dict[str, str]:
    kept = {name: ambient[name] for name in _KEPT_VARIABLES if name in ambient}
    folders = [folder for folder in kept.get("PATH", "").split(":") if folder]
    kept["PATH"] = ":".join([*folders, *(folder for folder in _SYSTEM_FOLDERS if folder not in folders)])
    return kept


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_seconds: float = 600,
) -> str:
    """Returns what `command` printed; raises ClusterError with the end of its complaint when it fails."""
    try:
        finished = subprocess.run(
            [str(word) for word in command],
            input=stdin,
            env=clean_environment() if environment is None else dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is not there: `make cluster-binaries` or the packages bring it") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{command[0]}` did not end within {timeout_seconds:.0f} s") from error
    if finished.returncode != 0:
        complaint = (finished.stderr.strip() or finished.stdout.strip())[-3000:]
        words = " ".join(str(word) for word in command[:6])
        raise ClusterError(f"`{words}` ended with {finished.returncode}: {complaint}")
    return finished.stdout


def progress(sentence: str) -> None:
    print(f"cluster: {sentence}", flush=True)

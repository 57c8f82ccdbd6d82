"""A file of API keys: one key per line; blank lines, spaces around a key, and lines that begin with `#` mean nothing.

Owns that form, for the server that checks keys and for the programs that send one. In: a path. Out: keys, in the order
of the file. It knows no tenants and remembers nothing.
"""

from pathlib import Path


def read_keys(path: Path) -> list[str]:
    """At least one key. Raises OSError, and ValueError (one sentence) for a file that holds none or is not UTF-8."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"the API key file {path} is not UTF-8 text: write one key per line") from None
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"the API key file {path} holds no key: write one per line")
    return keys


def key_headers(path: Path) -> dict[str, str]:
    """The header that carries the first key. Raises ValueError (one sentence) when there is none to send."""
    try:
        key = read_keys(path)[0]
    except OSError as error:
        raise ValueError(f"the API key file {path} cannot be read: {error.strerror}") from None
    if not key.isascii():
        raise ValueError(f"the first key of {path} cannot be sent: a header takes ASCII alone")
    return {"Authorization": f"Bearer {key}"}

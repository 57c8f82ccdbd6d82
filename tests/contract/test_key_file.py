"""What a program says when it has no key to send; the form of the file is tested with the server's keys."""

from pathlib import Path

import pytest

from plimsoll_runtime.contract.key_file import key_headers


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        (b"# none\n\n", "holds no key: write one per line"),
        (b"\xff", "is not UTF-8 text"),
        ("schlüssel".encode(), "cannot be sent: a header takes ASCII alone"),
    ],
)
def test_why_there_is_no_key_to_send(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        key_headers(path)

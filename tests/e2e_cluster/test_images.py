"""Image archives and the mirror of the base image."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from plimsoll_cluster import images
from plimsoll_cluster.commands import ClusterError

DEB822 = """\
Types: deb
# URIs: http://old.example/debian
URIs: http://security.example/debian-security
Suites: bookworm-security

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("sources.list.d/debian.sources", DEB822),
        ("sources.list", "# deb http://old.example/debian x main\ndeb http://mirror.example/debian bookworm main\n"),
        ("sources.list.d/main.list", "deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main\n"),
    ],
    ids=["deb822", "one line", "one line with options"],
)
def test_the_mirror_is_the_one_that_apt_uses(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert images.debian_mirror(tmp_path) == "http://mirror.example/debian"


def test_without_a_mirror_the_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="PLIMSOLL_DEBIAN_MIRROR"):
        images.debian_mirror(tmp_path)


def test_an_archive_holds_the_program_its_digest_and_its_tag(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    images.write_archive(tmp_path / "image.tar", "localhost/plimsoll/pause:1", program)
    with tarfile.open(tmp_path / "image.tar") as archive:
        contents = {member.name: _content(archive, member) for member in archive}
    manifest = json.loads(contents["manifest.json"])[0]
    config = json.loads(contents[manifest["Config"]])
    layer = contents[manifest["Layers"][0]]
    assert manifest["RepoTags"] == ["localhost/plimsoll/pause:1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert b"\x7fELF" in layer


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()

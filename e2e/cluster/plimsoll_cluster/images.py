"""Container images without a registry: built here, handed to the cluster's containerd as files.

- `write_archive` packs one static program as an image (no builder needed).
- `build_base_image` makes a Debian with Python 3.11 from the machine's own apt sources.
- `build_image` builds a Containerfile on top of it: `ARG BASE_IMAGE` / `FROM ${BASE_IMAGE}`.
- `import_image` hands a built image over; pods then use it with `imagePullPolicy: IfNotPresent` (or Never).

Built images are kept by buildah in the cache folder, so that unchanged layers are not built again.
"""

import hashlib
import io
import json
import os
import platform
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from plimsoll_cluster.binaries import cache_root
from plimsoll_cluster.commands import ClusterError, clean_environment, progress, run

BASE_IMAGE = "localhost/plimsoll/base:bookworm"
_SUITE = "bookworm"  # the Debian of Python 3.11
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_BUILD_SECONDS = 3600
# What pip in a Containerfile may need to know about this machine; a Containerfile takes each with ARG.
_PASSED_ON = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "http_proxy", "https_proxy", "no_proxy")


def build_image(
    containerfile: Path,
    tag: str,
    build_args: Mapping[str, str] | None = None,
    *,
    context: Path | None = None,
    volumes: Iterable[str] = (),
) -> str:
    """Builds `tag` from `containerfile` and returns the image's id.

    `context` is the folder that COPY reads, by default the Containerfile's own. `build_args` gains BASE_IMAGE when it
    is not in it. `volumes` ("/on/this/machine:/in/the/build:ro") are seen by RUN only and are not part of the image;
    the machine's certificate authorities are always seen.
    """
    arguments = {"BASE_IMAGE": BASE_IMAGE, **(build_args or {})}
    if arguments["BASE_IMAGE"] == BASE_IMAGE and not is_built(BASE_IMAGE) and tag != BASE_IMAGE:
        build_base_image()
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    progress(f"building image {tag}")
    command = ["build", "--layers", "--pull-never", "--isolation=chroot", "--network=host", "--format=docker"]
    command += [f"--build-arg={name}={value}" for name, value in {**passed_on, **arguments}.items()]
    command += [f"--volume={volume}" for volume in [*_authority_volumes(), *volumes]]
    _buildah(*command, f"--file={containerfile}", f"--tag={tag}", str(context or containerfile.parent))
    return image_id(tag)


def image_id(tag: str) -> str:
    """Of the built image `tag`: another build with other content has another."""
    return _buildah("inspect", "--type=image", "--format={{.FromImageID}}", tag).strip()


def import_image(tag: str, socket: Path) -> None:
    """Hands the built image `tag` to the containerd that listens at `socket`."""
    with tempfile.TemporaryDirectory(dir=_image_folder()) as folder:
        archive = Path(folder) / "image.tar"
        _buildah("push", tag, f"docker-archive:{archive}:{tag}")
        import_archive(archive, socket)
    progress(f"image {tag} is in the cluster")


def import_archive(archive: Path, socket: Path) -> None:
    run(["ctr", f"--address={socket}", "--namespace=k8s.io", "images", "import", archive])


def build_base_image() -> None:
    """A minimal Debian with Python, from the mirror that the machine's own apt uses; a minute, once."""
    mirror = os.environ.get("PLIMSOLL_DEBIAN_MIRROR") or debian_mirror(Path("/etc/apt"))
    progress(f"making the base image {BASE_IMAGE} with debootstrap (about a minute)")
    with tempfile.TemporaryDirectory(dir=_image_folder()) as folder:
        tree = Path(folder) / "tree"
        command = ["debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", _SUITE, str(tree), mirror]
        run(command, timeout_seconds=_BUILD_SECONDS)
        for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*"):
            for file in tree.glob(pattern):
                file.unlink()
        run(["tar", "--create", f"--file={folder}/base.tar", "--numeric-owner", f"--directory={tree}", "."])
        recipe = Path(folder) / "context" / "Containerfile"
        recipe.parent.mkdir()
        Path(folder, "base.tar").rename(recipe.parent / "base.tar")
        recipe.write_text("FROM scratch\nADD base.tar /\n")
        build_image(recipe, BASE_IMAGE)


def debian_mirror(apt: Path) -> str:
    """The first Debian mirror in apt's sources, of either format."""
    sources = [
        *sorted(apt.glob("sources.list.d/*.sources")),
        apt / "sources.list",
        *sorted(apt.glob("sources.list.d/*.list")),
    ]
    for source in sources:
        text = source.read_text() if source.exists() else ""
        found = re.search(r"^(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+/debian/?)(?:\s|$)", text, re.MULTILINE)
        if found:
            return found.group(1)
    raise ClusterError(f"no Debian mirror in {apt}: set PLIMSOLL_DEBIAN_MIRROR")


def write_archive(archive: Path, tag: str, program: Path) -> None:
    """Writes `archive`, an image `tag` that holds nothing but the static `program` and runs it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        entry = tarfile.TarInfo(program.name)
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as binary:
            files.addfile(entry, binary)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "plimsoll"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    members = {"layer.tar": layer.getvalue(), "config.json": _json(config), "manifest.json": _json(manifest)}
    with tarfile.open(archive, "w") as image:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            image.addfile(member, io.BytesIO(content))


def is_built(tag: str) -> bool:
    return bool(_buildah("images", "--quiet", "--filter", f"reference={tag}").strip())


def _buildah(verb: str, *arguments: str) -> str:
    """buildah with a store and a policy of our own: what else is on the machine is neither used nor changed."""
    folder = _image_folder()
    policy = folder / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    store = [f"--root={folder}/storage", f"--runroot={folder}/run", "--storage-driver=overlay"]
    signed = [f"--signature-policy={policy}"] if verb in ("build", "push") else []
    words = ["buildah", *store, verb, *signed, *arguments]
    return run(words, environment=clean_environment(), timeout_seconds=_BUILD_SECONDS)


def _image_folder() -> Path:
    folder = cache_root() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _authority_volumes() -> list[str]:
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    return [f"{bundle}:{bundle}:ro"] if bundle.exists() else []


def _json(value: object) -> bytes:
    return json.dumps(value).encode()

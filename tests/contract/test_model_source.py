"""Model sources: what each scheme means, and what is refused by name."""

import re
import sys
from pathlib import Path

import pytest

from plimsoll_runtime.contract.model_source import (
    MANIFEST_PATTERN,
    ModelSourceError,
    default_served_name,
    parse_model_source,
    resolve_model_path,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org", "no repository of the form org/name"),
        ("hf://org/name/model.bin", "is not a GGUF file"),
        ("pvc://claim", "expected pvc://claim/path"),
        ("pvc://Claim/path", "expected pvc://claim/path"),
        ("pvc://claim/../path", "must not contain '..'"),
        ("oci://image/path", "expected oci://image:tag/path"),
        ("oci://registry.example:5000/image/path", "expected oci://image:tag/path"),
        ("oci://image:tag", "expected oci://image:tag/path"),
        ("oci://image:tag/../path", "must not contain '..'"),
        ("s3://bucket/path", "s3:// is not a scheme"),
        ("", "not a path"),
        ("file://models/m", "needs a path from the root"),
        ("file:///", "needs a path from the root"),
        ("file:///models/../etc/passwd", "must not contain '..'"),
        ("package://p", "expected package://python_package/file"),
        ("package://p/", "expected package://python_package/file"),
        ("package://p//etc/passwd", "expected package://python_package/file"),
        ("package://p.q/f", "expected package://python_package/file"),
        ("package://p/../q/f", "must not contain '..'"),
    ],
)
def test_what_is_no_source_is_refused_by_name(text: str, expected: str) -> None:
    with pytest.raises(ModelSourceError) as fault:
        parse_model_source(text)
    assert expected in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org/name", "hf:// is fetched into the pod"),
        ("hf://org/name/m.gguf@main", "plimsoll fetch --source=hf://org/name/m.gguf@main"),
        ("pvc://claim/path", "pvc:// names a PersistentVolumeClaim"),
        ("oci://registry.example:5000/org/image:tag/path", "oci:// is an image"),
    ],
)
def test_what_only_a_cluster_has_is_refused_outside_with_the_reason(text: str, expected: str) -> None:
    with pytest.raises(ModelSourceError) as fault:
        resolve_model_path(parse_model_source(text))
    assert expected in str(fault.value)
    assert "file:///path" in str(fault.value)


@pytest.mark.parametrize(
    ("text", "image", "path"),
    [
        ("oci://image:tag/m.gguf", "image:tag", "m.gguf"),
        ("oci://localhost/image:tag/folder/m", "localhost/image:tag", "folder/m"),
        ("oci://registry.example:5000/org/image:tag/m", "registry.example:5000/org/image:tag", "m"),
        ("oci://org/image@sha256:0a/m", "org/image@sha256:0a", "m"),
        ("oci://org/image:1.0@sha256:0a/m", "org/image:1.0@sha256:0a", "m"),
    ],
)
def test_an_image_ends_with_its_tag(text: str, image: str, path: str) -> None:
    """A registry's port is no tag."""
    source = parse_model_source(text)
    assert (source.image, str(source.path)) == (image, path)


PROPER = (
    "file:///models/m",
    "FILE:///models/m",
    "package://p/m.gguf",
    "hf://org/name",
    "hf://org/name@main",
    "hf://org/name/folder/m.gguf@refs/pr/1",
    "pvc://claim-1.a/folder/m",
    "oci://image:tag/m",
    "oci://registry.example:5000/org/image@sha256:0a/m",
)


@pytest.mark.parametrize("text", PROPER)
def test_the_api_server_lets_every_proper_source_through(text: str) -> None:
    parse_model_source(text)
    assert re.search(MANIFEST_PATTERN, text)


@pytest.mark.parametrize("text", ["/models/m", "m", "s3://bucket/m", "file://m", "package://p", "hf://org", "pvc://c"])
def test_the_api_server_refuses_another_form(text: str) -> None:
    assert not re.search(MANIFEST_PATTERN, text)


def test_a_file_is_found_under_its_scheme_and_as_a_bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "a model.gguf"
    model.touch()
    monkeypatch.chdir(tmp_path)
    for text in (f"file://{model}", f"FILE://{model}", str(model), "a model.gguf"):
        assert resolve_model_path(parse_model_source(text)).samefile(model)


def test_a_package_is_looked_up_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_with_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the code of a package that only holds a model ran')")
    (package / "m.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_model_path(parse_model_source("package://package_with_a_model/m.gguf")) == package / "m.gguf"
    assert "package_with_a_model" not in sys.modules


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("package://no_such_package/f.gguf", "no Python package no_such_package is installed"),
        ("package://__main__/f.gguf", "no Python package __main__ is installed"),
        ("package://plimsoll_runtime/no_such_file.gguf", "no file or folder"),
        ("file:///no/such/model", "no file or folder /no/such/model"),
    ],
)
def test_what_does_not_lie_there_is_a_sentence(text: str, expected: str) -> None:
    with pytest.raises(ModelSourceError) as fault:
        resolve_model_path(parse_model_source(text))
    assert expected in str(fault.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("package://p/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("file:///models/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("file:///models/Qwen2.5-0.5B-Instruct/", "Qwen2.5-0.5B-Instruct"),
        ("models/tiny.GGUF", "tiny"),
        ("hf://org/Qwen2.5-0.5B@main", "Qwen2.5-0.5B"),
        ("hf://org/name/tiny.gguf", "tiny"),
        ("pvc://claim/models/tiny.gguf", "tiny"),
        ("oci://image:tag/models/tiny", "tiny"),
    ],
)
def test_the_default_served_name_is_the_last_part(text: str, name: str) -> None:
    """Before: the dot in a folder's name was taken for a suffix, and Qwen2.5-0.5B was served as Qwen2."""
    assert default_served_name(parse_model_source(text)) == name

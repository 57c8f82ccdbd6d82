"""The grammar of models on a hub."""

from pathlib import PurePosixPath

import pytest

from plimsoll_runtime.contract.hub_source import HubSourceError, parse_hub_source


@pytest.mark.parametrize(
    ("text", "repository", "revision", "opened"),
    [
        ("hf://org/name", "org/name", None, "/m"),
        ("HF://org/Name-2.5@v1", "org/Name-2.5", "v1", "/m"),
        ("hf://org/name@refs/pr/1", "org/name", "refs/pr/1", "/m"),
        ("hf://org/name/a.gguf@main", "org/name", "main", "/m/a.gguf"),
        ("hf://org/name/Q8/a-00001-of-00002.GGUF", "org/name", None, "/m/Q8/a-00001-of-00002.GGUF"),
    ],
)
def test_a_source_names_repository_revision_and_what_the_server_opens(
    text: str, repository: str, revision: str | None, opened: str
) -> None:
    source = parse_hub_source(text)
    assert (source.repository, source.revision) == (repository, revision)
    assert source.model_path(PurePosixPath("/m")) == PurePosixPath(opened)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/models/a", "not on a hub"),
        ("s3://org/name", "not on a hub"),
        ("hf://org", "no repository of the form org/name"),
        ("hf:///name", "no repository of the form org/name"),
        ("hf://org/na me", "no repository of the form org/name"),
        ("hf://org/..", "no repository of the form org/name"),
        ("hf://org/name/model.safetensors", "is not a GGUF file"),
        ("hf://org/name//a.gguf", "is not a GGUF file"),
        ("hf://org/name/../a.gguf", "is not a GGUF file"),
        ("hf://org/name@", "'' is not a revision"),
        ("hf://org/name@../x", "is not a revision"),
        ("hf://org/name@a b", "is not a revision"),
    ],
)
def test_anything_else_is_a_sentence_with_the_form(text: str, expected: str) -> None:
    with pytest.raises(HubSourceError) as error:
        parse_hub_source(text)
    assert expected in str(error.value)
    assert "write hf://org/name" in str(error.value)

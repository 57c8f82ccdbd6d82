"""The chart's files against each other and against the project, without Helm."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from plimsoll_operator.chart_values import ChartValues
from plimsoll_operator.names import GROUP, KIND, PLURAL, VERSION
from plimsoll_runtime.contract.wording import value_schema

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "plimsoll"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
CHART_FILE: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_A_POD = {"resources", "affinity"}
"""Kubernetes' own objects, passed on as they are: the API server knows them."""
HELMS_OWN = {"global"}


def schema_paths(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}", part
        yield from schema_paths(part, f"{path}{name}.")


def value_paths(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        yield f"{path}{name}", value
        if isinstance(value, dict) and f"{path}{name}" not in OF_A_POD:
            yield from value_paths(value, f"{path}{name}.")


def test_schema_and_values_name_the_same_things() -> None:
    assert {path for path, _ in schema_paths(SCHEMA)} - HELMS_OWN == {path for path, _ in value_paths(VALUES)}


def test_every_value_is_described_and_of_its_type() -> None:
    types = {"string": str, "boolean": bool, "integer": int, "object": dict, "array": list}
    values = dict(value_paths(VALUES))
    for path, part in schema_paths(SCHEMA):
        assert part["description"].endswith("."), path
        if path not in HELMS_OWN:
            assert type(values[path]) is types[part["type"]], path
            assert values[path] in part.get("enum", [values[path]]), path


def test_every_object_is_closed_or_named_here_as_kubernetes_own() -> None:
    assert SCHEMA["additionalProperties"] is False
    for path, part in schema_paths(SCHEMA):
        if part["type"] == "object" and path not in OF_A_POD | HELMS_OWN:
            assert part["additionalProperties"] in (False, {"type": "string"}), path


def test_b128_every_value_is_asked_for() -> None:
    """So that an upgrade with the values of an older chart says what is missing, where it would run without it."""
    for path, part in [("", SCHEMA), *schema_paths(SCHEMA)]:
        if "properties" in part:
            assert set(part["required"]) == set(part["properties"]) - HELMS_OWN, path


def test_the_defaults_are_values_that_the_chart_takes() -> None:
    ChartValues.model_validate_json(json.dumps(VALUES))


@pytest.mark.parametrize(
    ("ceiling", "setting"),
    [
        ("contextLength", "context_length"),
        ("maxOutputLimit", "max_output_limit"),
        ("runningSlots", "running_slots"),
    ],
)
def test_a_ceiling_goes_as_far_as_the_contract(ceiling: str, setting: str) -> None:
    """Above that it could refuse nothing, and was taken for one that does; 0 is none."""
    most = value_schema(setting)["maximum"]
    schema = SCHEMA["properties"]["ceilings"]["properties"][ceiling]
    assert (schema["minimum"], schema["maximum"]) == (0, most)
    ChartValues.model_validate_json(json.dumps({**VALUES, "ceilings": {**VALUES["ceilings"], ceiling: most}}))
    with pytest.raises(ValidationError, match=str(most)):
        ChartValues.model_validate_json(json.dumps({**VALUES, "ceilings": {**VALUES["ceilings"], ceiling: most + 1}}))


def test_the_schema_refers_to_nothing() -> None:
    """A description beside a reference does not count in draft-07, and the tests above walk no references."""
    assert '"$ref"' not in json.dumps(SCHEMA)


def test_chart_and_project_have_one_version() -> None:
    assert CHART_FILE["version"] == CHART_FILE["appVersion"] == PROJECT["version"]


def test_artifact_hub_is_told_of_the_images_and_the_kind_that_there_are() -> None:
    annotations = CHART_FILE["annotations"]
    images = {image["name"]: image["image"] for image in yaml.safe_load(annotations["artifacthub.io/images"])}
    version = PROJECT["version"]
    assert images == {
        "operator": f"{VALUES['image']['repository']}:{version}",
        "runtime": f"{VALUES['runtimeImage']['repository']}:{version}",
    }
    (crd,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert (crd["kind"], crd["version"], crd["name"]) == (KIND, VERSION, f"{PLURAL}.{GROUP}")
    (example,) = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert (example["apiVersion"], example["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    assert annotations["artifacthub.io/license"] == PROJECT["license"]


@pytest.mark.parametrize("side", ["operator", "runtime"])
def test_images_run_as_a_numbered_user_with_the_program_as_process_1(side: str) -> None:
    lines = (ROOT / side / "Containerfile").read_text(encoding="utf-8").splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 65532:65532" in last_stage
    assert 'ENTRYPOINT ["plimsoll"]' in last_stage
    assert "ARG BASE_IMAGE=docker.io/library/python:3.11-slim" in lines


def test_the_two_images_are_built_in_the_same_way() -> None:
    """They differ in what is installed, and in the compiler; a Containerfile cannot include another."""
    of_operator, of_runtime = (
        build_stage((ROOT / side / "Containerfile").read_text()) for side in ("operator", "runtime")
    )
    compiler, _, after_compiler = of_runtime.partition("COPY README.md")
    assert "command -v c++" in compiler
    assert of_operator == "COPY README.md" + after_compiler.replace(" setup.py ./", " ./", 1)


def build_stage(text: str) -> str:
    """Of the wheel, and its place in the last stage."""
    return text.partition("FROM dependencies AS build\n")[2].partition("# LOGNAME")[0]

"""The manifest and the image file: valid by Kubernetes' own schemas, and consistent with the commands they call."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from repro.launchers.nodes.hosts import PORT
from tests.in_process import called, succeeded

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "deploy" / "kubernetes.yaml"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {item["kind"]: item for item in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.mark.parametrize("version", ["1.28", "1.33"])
def test_the_manifest_is_valid(objects: dict[str, Any], version: str) -> None:
    assert set(objects) == {"Service", "PersistentVolumeClaim", "Job"}
    for item in objects.values():
        kubernetes_validate.validate(item, version, strict=True)  # raises for the first mistake


def test_a_mistake_in_the_manifest_would_be_found(objects: dict[str, Any]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(objects["Job"]).replace("completionMode", "completionModus"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_its_parts_name_each_other(objects: dict[str, Any]) -> None:
    job, service = objects["Job"], objects["Service"]
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert pod["subdomain"] == service["metadata"]["name"] and service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"] == PORT
    script = container["args"][0]
    assert f"--join {job['metadata']['name']}-0.{service['metadata']['name']}:{PORT}" in script
    image = {item["name"]: item.get("value") for item in container["env"]}["REPRO_IMAGE"]
    assert image == container["image"] and re.search(r"@sha256:[0-9a-f]{64}$", image)
    claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]


def test_the_commands_of_the_manifest_exist(objects: dict[str, Any], tmp_path: Path) -> None:
    script = objects["Job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    commands = [shlex.split(text)[1:] for text in re.findall(r"exec (repro [^;\n]+)", script)]
    assert [words[0] for words in commands] == ["agent", "run", "run"]
    first = commands[2]
    succeeded("plan", *first[1:first.index("--launcher")], "-o", f"launcher={first[first.index('--launcher') + 1]}",
              "-o", "processes=4")
    for words in commands:
        options = {word for word in words if word.startswith("--")}
        helped = called(words[0], "--help").output
        assert all(option in helped for option in options), words


def test_the_image_file_copies_and_installs_what_exists() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert (ROOT / "constraints.txt").is_file() and "constraints.txt" in text
    assert re.search(r"^FROM \$\{BASE\}$", text, re.MULTILINE) and "ARG BASE=" in text.partition("FROM")[0]
    assert "grep -v '^torch=='" in text
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

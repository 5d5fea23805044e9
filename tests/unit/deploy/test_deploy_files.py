"""The manifest and the image file: valid by Kubernetes' own schemas, and consistent with each other and the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from repro.core.errors import Exit
from repro.launchers.nodes.hosts import PORT
from repro.runner.tracking_store import database, store_uri
from tests.in_process import called, succeeded

ROOT = Path(__file__).parents[3]
MANIFEST = ROOT / "deploy" / "kubernetes.yaml"
IMAGE_FILE = (ROOT / "deploy" / "Dockerfile").read_text()
INDEX = "https://index.example/cpu"
LABEL = {"app.kubernetes.io/name": "repro"}


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], Any]:
    return {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def jobs(objects: dict[tuple[str, str], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specifications of the jobs: of node 0, and of the others."""
    return objects["Job", "repro"]["spec"], objects["Job", "repro-agents"]["spec"]


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["template"]["spec"]


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(job)["containers"]
    return container


@pytest.mark.parametrize("version", ["1.31", "1.37"])  # a policy of failures is stable since 1.31
def test_the_manifest_is_valid(objects: dict[tuple[str, str], Any], version: str) -> None:
    assert sorted(kind for kind, _ in objects) == ["Job", "Job", "NetworkPolicy", "PersistentVolumeClaim", "Service"]
    for item in objects.values():
        kubernetes_validate.validate(item, version, strict=True)  # raises for the first mistake


def test_a_mistake_in_the_manifest_would_be_found(objects: dict[tuple[str, str], Any]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(objects["Job", "repro-agents"]).replace("completionMode", "completionModus"))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_its_parts_name_each_other(objects: dict[tuple[str, str], Any], jobs: tuple[Any, Any]) -> None:
    first, others = jobs
    service = objects["Service", "repro"]["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] and service["selector"] == LABEL
    assert container_of(first)["ports"][0]["containerPort"] == service["ports"][0]["port"] == PORT
    assert container_of(others)["args"][0].count(f"--join {pod_of(first)['hostname']}.repro:{PORT} ") == 2
    nodes = re.search(r"nodes: (\d+),.*-o processes=(\d+)", container_of(first)["args"][0])
    assert nodes and int(nodes[1]) == int(nodes[2]) == others["completions"] + 1 == others["parallelism"] + 1
    (image,) = {container_of(job)["image"] for job in jobs}
    assert re.search(r"@sha256:[0-9a-f]{64}$", image)
    assert {"name": "REPRO_IMAGE", "value": image} in container_of(first)["env"]
    for job in jobs:
        assert job["template"]["metadata"]["labels"] == LABEL and pod_of(job)["subdomain"] == "repro"


def test_only_node_0_mounts_the_claim(objects: dict[tuple[str, str], Any], jobs: tuple[Any, Any]) -> None:
    claims = [volume["persistentVolumeClaim"]["claimName"] for job in jobs for volume in pod_of(job)["volumes"]
              if "persistentVolumeClaim" in volume]
    assert claims == ["repro-runs"] and ("PersistentVolumeClaim", "repro-runs") in objects
    assert jobs[0].get("parallelism", 1) == 1


def test_one_pod_a_node_and_no_peer_but_the_pods_of_the_run(objects: dict[tuple[str, str], Any], jobs: Any) -> None:
    for job in jobs:
        (term,) = pod_of(job)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": LABEL}}
    policy, peer = objects["NetworkPolicy", "repro"]["spec"], [{"podSelector": {"matchLabels": LABEL}}]
    assert policy["podSelector"] == {"matchLabels": LABEL} and set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["ingress"] == [{"from": peer}]
    mates, names = policy["egress"]
    assert mates == {"to": peer} and {port["port"] for port in names["ports"]} == {53}


def test_a_result_ends_the_job_and_a_fault_does_not(jobs: tuple[Any, Any]) -> None:
    for job, ends in zip(jobs, ({Exit.TRIAL_FAILED, Exit.USAGE, Exit.NOT_REPRODUCED}, {Exit.TRIAL_FAILED, Exit.USAGE}),
                         strict=True):
        assert pod_of(job)["restartPolicy"] == "Never"  # Kubernetes takes no policy by exit code with another
        end, drained = job["podFailurePolicy"]["rules"]
        assert end["action"] == "FailJob" and end["onExitCodes"]["operator"] == "In"
        assert set(end["onExitCodes"]["values"]) == ends and Exit.INTERRUPTED not in ends
        assert end["onExitCodes"]["containerName"] == container_of(job)["name"]
        assert drained == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert job["activeDeadlineSeconds"] > 0 and job["backoffLimit"] > 0


def test_no_container_is_root_or_can_become_it(jobs: tuple[Any, Any]) -> None:
    user, group = map(int, re.findall(r"^USER (\d+):(\d+)$", IMAGE_FILE, re.MULTILINE)[-1])
    assert user > 0 and f"useradd --uid {user} " in IMAGE_FILE
    for job in jobs:
        security = pod_of(job)["securityContext"]
        assert security["runAsNonRoot"] and (security["runAsUser"], security["runAsGroup"]) == (user, group)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container_of(job)["securityContext"] == {"allowPrivilegeEscalation": False,
                                                        "capabilities": {"drop": ["ALL"]}}
        assert pod_of(job)["automountServiceAccountToken"] is False
    assert pod_of(jobs[0])["securityContext"]["fsGroup"] == group  # the claim is writable


def test_the_commands_of_the_manifest_exist(jobs: tuple[Any, Any]) -> None:
    text = "\n".join(container_of(job)["args"][0] for job in jobs)
    commands = [shlex.split(found)[1:] for found in re.findall(r"(repro (?:agent|run) [^;\n|]+)", text)]
    assert [words[0] for words in commands] == ["run", "run", "agent", "agent"]
    first = commands[1]
    succeeded("plan", *first[1:first.index("--launcher")], "-o", f"launcher={first[first.index('--launcher') + 1]}",
              "-o", "processes=4")
    for words in commands:
        options = {word for word in words if word.startswith("--")}
        helped = called(words[0], "--help").output
        assert all(option in helped for option in options), words


def torch_step(tmp_path: Path, choice: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the image file that installs torch, with a pip that only prints its arguments."""
    step = re.search(r"^RUN (case (?:.*\\\n)*.*)", IMAGE_FILE, re.MULTILINE)
    assert step
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    return subprocess.run(["sh", "-c", step[1].replace("/tmp/", f"{tmp_path}/")], text=True, capture_output=True,
                          cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TORCH": choice,
                                         "TORCH_INDEX": INDEX})


def test_the_image_has_torch_without_cuda_unless_it_is_stated(tmp_path: Path) -> None:
    (pinned,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert re.search(r"^ARG TORCH=cpu$", IMAGE_FILE, re.MULTILINE)
    for choice, wanted in (("cpu", f"{pinned}+cpu"), ("cuda", pinned)):
        assert torch_step(tmp_path, choice).stdout.split()[-3:] == ["--extra-index-url", INDEX, wanted]
        assert wanted in (tmp_path / "constraints.txt").read_text().splitlines()
    assert torch_step(tmp_path, "given").stdout == ""
    assert not re.search(r"^torch==", (tmp_path / "constraints.txt").read_text(), re.MULTILINE)
    wrong = torch_step(tmp_path, "cpuu")
    assert wrong.returncode == 1 and wrong.stderr == "TORCH=cpuu is not cpu, cuda or given\n"


def test_the_context_of_the_image_has_what_the_package_is_built_from_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    admitted = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*" and all((ROOT / name).exists() for name in admitted)
    project = (ROOT / "pyproject.toml").read_text()
    folders = re.findall(r'^"repro[a-z.]*" = "(\w+)"$', project, re.MULTILINE)
    assert admitted == {*folders, "LICENSE", "NOTICE", "README.md", "constraints.txt", "pyproject.toml"}
    assert re.search(r"^FROM \$\{BASE\}$", IMAGE_FILE, re.MULTILINE) and "ARG BASE=" in IMAGE_FILE.partition("FROM")[0]


def test_a_volume_at_the_working_folder_of_the_image_keeps_the_store(monkeypatch: pytest.MonkeyPatch,
                                                                     tmp_path: Path) -> None:
    (folder,) = re.findall(r"^WORKDIR (.*)", IMAGE_FILE, re.MULTILINE)[-1:]
    (state,) = re.findall(r" XDG_STATE_HOME=(\S+)", IMAGE_FILE)
    below = Path(state).relative_to(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / below))
    store = database(store_uri())
    assert store is not None
    name = store.relative_to(tmp_path).as_posix()
    for file in ("deploy/Dockerfile", "deploy/try.sh", "docs/nodes.md"):
        assert name in (ROOT / file).read_text(), file


def test_the_trial_of_the_image_calls_commands_that_exist() -> None:
    script = (ROOT / "deploy" / "try.sh").read_text()
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    for job in ("repro", "repro-agents"):
        assert re.search(rf"^node \d {job}\b", script, re.MULTILINE)
    replaced = re.findall(r"s/([^/]+)/", script)
    assert len(replaced) == 4 and all(text in MANIFEST.read_text() for text in replaced)

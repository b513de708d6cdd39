"""The Helm chart in ``backend/helm``. At night Helm's own library renders it, and the schemas of Kubernetes check the result.

uv pip install --group chart
python -m pytest -m slow tests/packaging/test_helm_chart.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "backend" / "helm"
DEPLOYMENT = (CHART / "templates" / "deployment.yaml").read_text()
KUBERNETES = ("1.28", "1.31", "1.34")
SHARED = {
    "replicas": 3,
    "database": {"url": "postgresql+psycopg://vramscope@db/vramscope"},
    "secret": "vramscope-secrets",
    "persistence": {"accessMode": "ReadWriteMany", "storageClass": "nfs"},
}
BUCKET = {
    **SHARED,
    "settings": {"VRAMSCOPE_ARTIFACTS": "s3://lab/vramscope", "AWS_REGION": "eu-central-1"},
    "persistence": {"enabled": False},
}
PUBLIC = {
    "image": {"repository": "registry.example.org/vramscope", "digest": f"sha256:{'a' * 64}", "pullSecrets": ["pull"]},
    "ingress": {"enabled": True, "host": "gpu.example.org", "className": "nginx", "tlsSecret": "gpu-tls"},
    "settings": {"VRAMSCOPE_RETENTION_BYTES": "100000000000", "OTEL_METRIC_EXPORT_INTERVAL": "10000"},
    "persistence": {"existingClaim": "of-before"},
}


def test_chart_has_the_version_of_the_package() -> None:
    from vramscope import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_variables_that_the_chart_sets_are_settings_of_the_server() -> None:
    """The server would ignore others."""
    from vramscope_server.settings import Settings

    known = {f"VRAMSCOPE_{name.upper()}" for name in Settings.model_fields}
    own = set(re.findall(r"name: (VRAMSCOPE_\w+)", DEPLOYMENT))
    assert own and own <= known
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert int(values["snapshotMemoryBytes"]) < 8 << 30, "less than the limit of the container"
    checked = re.search(r"range \$name := list (.*) }}", (CHART / "templates" / "_names.tpl").read_text())
    assert checked is not None
    assert set(re.findall(r"VRAMSCOPE_\w+", checked[1])) == own - {"VRAMSCOPE_PUBLIC_URL"}, "each value stands once"


def test_schema_names_the_values_of_the_chart() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema.keys() - {"global"} == values.keys()
    for name, value in values.items():
        if "properties" in schema[name]:
            assert schema[name]["properties"].keys() == value.keys(), name


def test_user_and_port_are_those_of_the_image() -> None:
    image = (ROOT / "backend" / "Dockerfile").read_text()
    (uid,) = re.findall(r"--uid (\d+)", image)
    assert re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", DEPLOYMENT) == [uid] * 3
    (port,) = re.findall(r"EXPOSE (\d+)", image)
    assert f"containerPort: {port}" in DEPLOYMENT


def test_probes_ask_for_what_the_server_answers_without_a_token(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    from vramscope_server.app import create_app
    from vramscope_server.settings import Settings

    (path,) = set(re.findall(r"httpGet: \{path: ([^,]+),", DEPLOYMENT))
    with TestClient(create_app(Settings(data_dir=tmp_path, host="0.0.0.0"))) as client:
        assert client.get("/api/v1/runs").status_code == 401
        assert client.get(path).status_code == 200


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Resources by kind, checked with the schemas of several versions of Kubernetes."""
    helm = pytest.importorskip("helm_python")
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="vramscope", namespace="gpu")
    found = {}
    for name, text in files.items():
        if name.endswith(".yaml"):
            for resource in yaml.safe_load_all(text):
                if resource is not None:
                    found[resource["kind"]] = resource
                    for version in KUBERNETES:
                        kubernetes_validate.validate(resource, version, strict=True)
    return found


def environment(resources: dict[str, dict[str, Any]]) -> dict[str, str]:
    (container,) = resources["Deployment"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


@pytest.mark.slow
def test_default_values_give_one_closed_pod_with_a_volume() -> None:
    resources = rendered({})
    assert resources.keys() == {"Deployment", "Service", "PersistentVolumeClaim"}
    pod = resources["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    labels = resources["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert resources["Service"]["spec"]["selector"].items() <= labels.items()
    claim = resources["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim


@pytest.mark.slow
def test_settings_of_each_kind_reach_the_server() -> None:
    """They are what the server's own settings accept."""
    from vramscope_server.settings import Settings

    shared = rendered(SHARED)
    assert shared["Deployment"]["spec"]["replicas"] == 3
    assert environment(shared)["VRAMSCOPE_DATABASE"] == "postgresql+psycopg://vramscope@db/vramscope"
    (container,) = shared["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "vramscope-secrets"}}]
    in_bucket = rendered(BUCKET)
    assert "PersistentVolumeClaim" not in in_bucket
    assert environment(in_bucket)["VRAMSCOPE_ARTIFACTS"] == "s3://lab/vramscope"
    public = rendered(PUBLIC)
    assert public.keys() == {"Deployment", "Service", "Ingress"}, "the claim exists already"
    given = environment(public)
    assert given["VRAMSCOPE_RETENTION_BYTES"] == "100000000000", "not 1e+11"
    assert given["VRAMSCOPE_PUBLIC_URL"] == "https://gpu.example.org"
    named = {name.removeprefix("VRAMSCOPE_").lower(): value for name, value in given.items() if "OTEL" not in name}
    assert Settings(**named).retention_bytes == 10**11  # type: ignore[arg-type]
    (container,) = public["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.org/vramscope@sha256:{'a' * 64}"
    port = public["Ingress"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"]["name"]
    assert port in {one["name"] for one in public["Service"]["spec"]["ports"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "an SQLite file has one server process"),
        ({**SHARED, "persistence": {}}, "ReadWriteMany"),
        ({**SHARED, "persistence": {"enabled": False}}, "persistence.enabled"),
        ({**BUCKET, "persistence": {}}, "persistence.enabled=false"),
        ({"ingress": {"enabled": True}}, "ingress.host"),
        ({"settings": {"VRAMSCOPE_PORT": "80"}}, "the chart sets it"),
        ({"settings": {"VRAMSCOPE_RETENTION_BYTES": 100000000000}}, "settings"),
        ({"setings": {}}, "setings"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], said: str) -> None:
    helm = pytest.importorskip("helm_python")
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError, match=re.escape(said)):
        chart.validate_schema(values)
        chart.render(values, name="vramscope", namespace="gpu")

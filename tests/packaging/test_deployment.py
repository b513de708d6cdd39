"""The container's files, as far as they can be held to what they say without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "backend" / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_what_the_image_copies_exists_and_is_let_through():
    """.dockerignore shuts everything out but what is named."""
    sources = [part for words in instructions("COPY") if not words[0].startswith("--") for part in words[:-1]]
    assert {"pyproject.toml", "agent", "backend", "frontend"} <= set(sources)
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert let_through & {source, *map(str, Path(source).parents)}, source


def test_the_image_runs_as_nobody_special_and_checks_its_health():
    assert instructions("USER") == [["vramscope"]]
    assert instructions("VOLUME") == [["/data"]]
    [command] = re.findall(r"urlopen\('([^']*)'", DOCKERFILE)
    assert command == "http://127.0.0.1:8265/api/v1/health"
    assert DOCKERFILE.index("USER vramscope") < DOCKERFILE.index("HEALTHCHECK") < DOCKERFILE.index('CMD ["vramscope')


def test_every_setting_that_the_container_sets_is_one_of_the_servers(compose):
    """A name that the server does not know would be ignored in silence."""
    from vramscope_server.settings import Settings

    known = {f"VRAMSCOPE_{name.upper()}" for name in Settings.model_fields}
    in_image = set(re.findall(r"(VRAMSCOPE_\w+)=", DOCKERFILE))
    in_compose = {name for s in compose["services"].values() for name in s.get("environment", {})}
    assert in_image <= known
    assert {n for n in in_compose if n.startswith("VRAMSCOPE_")} <= known


def test_the_services_are_closed_and_reached_on_loopback_only(compose):
    services = compose["services"]
    assert set(services) == {
        "server",
        "server-postgres",
        "postgres",
        "caddy",
        "prometheus",
        "grafana",
        "backup",
        "backup-postgres",
    }
    assert "profiles" not in services["server"]
    for name in ("server", "server-postgres"):
        service = services[name]
        assert service["init"] and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert (ROOT / service["build"]["dockerfile"]).exists()
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert [v.partition(":")[2] for v in service["volumes"]] == ["/data"]
    assert "ports" not in services["postgres"]
    published = [services[n]["ports"][0] for n in ("server", "server-postgres")]
    assert len(set(published)) == 2, "both may run beside each other"


def test_the_postgres_profile_waits_for_its_database_and_names_it_rightly(compose):
    """The server starts when the database answers, with the URL that the driver in the extra understands."""
    services = compose["services"]
    server, database = services["server-postgres"], services["postgres"]
    assert server["profiles"] == database["profiles"] == ["postgres"]
    assert server["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert database["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    url = server["environment"]["VRAMSCOPE_DATABASE"]
    assert url == "postgresql+psycopg://vramscope@postgres/vramscope"
    assert database["environment"]["POSTGRES_USER"] == database["environment"]["POSTGRES_DB"] == "vramscope"
    assert server["environment"]["PGPASSWORD"] == database["environment"]["POSTGRES_PASSWORD"]
    assert database["environment"]["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-}", (
        "none by default: it refuses to start"
    )


def test_every_service_has_a_limit_of_memory_and_starts_again(compose):
    for name, service in compose["services"].items():
        assert service["mem_limit"] and service["restart"] == "unless-stopped", name


def test_settings_of_the_env_file_reach_the_server_but_for_those_of_the_container(compose):
    for name in ("server", "server-postgres"):
        service = compose["services"][name]
        assert service["env_file"] == [{"path": ".env", "required": False}]
        inside = service["environment"]
        assert (inside["VRAMSCOPE_HOST"], inside["VRAMSCOPE_PORT"]) == ("0.0.0.0", "8265")
        assert inside["VRAMSCOPE_DATA_DIR"] == "/data"


def test_each_variable_of_the_example_is_used_or_a_setting_and_each_that_is_used_stands_there(compose):
    from vramscope_server.settings import Settings

    example = set(re.findall(r"^#? ?([A-Z_]+)=", (ROOT / "env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    assert used <= example
    assert example - used <= {f"VRAMSCOPE_{name.upper()}" for name in Settings.model_fields}


def test_a_backup_is_made_by_the_command_that_the_docs_name(compose):
    from vramscope_server.cli import app

    command = compose["services"]["backup"]["command"]
    assert command[:2] == ["vramscope", "backup"]
    options = {option for p in typer.main.get_command(app).commands["backup"].params for option in p.opts}
    assert {word for word in command if word.startswith("--")} <= options
    assert {v.partition(":")[2] for v in compose["services"]["backup"]["volumes"]} == {"/data", "/backup"}
    assert "/data /backup" in DOCKERFILE, "made in the image, for the user that writes there"


def test_the_units_of_the_docs_start_the_server_with_settings_that_exist():
    from vramscope_server.settings import Settings

    text = (ROOT / "docs" / "deployment.md").read_text()
    units = [
        re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE) for unit in re.findall(r"```ini\n(.*?)```", text, re.DOTALL)
    ]
    assert len(units) == 2
    known = {*(f"VRAMSCOPE_{name.upper()}" for name in Settings.model_fields), "NUMBA_CACHE_DIR"}
    for unit in units:
        assert dict(unit)["ExecStart"].endswith("/bin/vramscope server")
        assert dict(unit)["WantedBy"] in ("default.target", "multi-user.target")
        assert {
            word.partition("=")[0] for name, value in unit if name == "Environment" for word in value.split()
        } <= known


def test_nginx_passes_on_the_port_of_the_host_and_the_address_of_the_client():
    """Without the port every change from a page of another port than 443 is refused."""
    for block in re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "deployment.md").read_text(), re.DOTALL):
        assert "Host $host;" not in block
        for location in re.findall(r"location / \{(.*?)\}", block, re.DOTALL):
            assert "Host $http_host;" in location and "X-Forwarded-For $proxy_add_x_forwarded_for;" in location


def test_every_volume_is_declared(compose):
    used = {v.partition(":")[0] for s in compose["services"].values() for v in s["volumes"]}
    assert {name for name in used if not name.startswith("./")} == set(compose["volumes"])


def test_prometheus_and_grafana_are_closed_and_get_files_that_exist(compose):
    """They refuse to start without a token or password, listen on loopback and send nothing out."""
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert service["profiles"] == ["monitoring"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), "a version, not a tag that moves"
        assert ":?" in service["command"][0]
        for source, *_, mode in (v.split(":") for v in service["volumes"] if v.startswith("./")):
            assert (ROOT / source).is_file() and mode == "ro", source
    grafana = compose["services"]["grafana"]["environment"]
    assert grafana["GF_ANALYTICS_REPORTING_ENABLED"] == "false" and grafana["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def start_of_prometheus(compose, tmp_path, **environment):
    """Run what the container runs, with a program of that name that does nothing."""
    (tmp_path / "prometheus").write_text('#!/bin/sh\necho started "$@"\n')
    (tmp_path / "prometheus").chmod(0o755)
    script = compose["services"]["prometheus"]["command"][0].replace("$$", "$").replace("/tmp/", f"{tmp_path}/")
    words = [*compose["services"]["prometheus"]["entrypoint"], script]
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def test_prometheus_starts_with_the_token_and_the_target_that_its_configuration_reads(compose, tmp_path):
    config = yaml.safe_load((ROOT / "backend" / "monitoring" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    refused = start_of_prometheus(compose, tmp_path, METRICS_TOKEN="", TARGET="server:8265")
    assert refused.returncode != 0 and "METRICS_TOKEN" in refused.stderr and not refused.stdout
    done = start_of_prometheus(compose, tmp_path, METRICS_TOKEN="a'b$c", TARGET="server:8265")
    assert done.returncode == 0 and "--config.file=/etc/prometheus/prometheus.yml" in done.stdout, done.stderr
    token = tmp_path / Path(job["authorization"]["credentials_file"]).name
    assert token.read_text() == "a'b$c" and token.stat().st_mode & 0o077 == 0
    [targets] = job["file_sd_configs"][0]["files"]
    assert yaml.safe_load((tmp_path / Path(targets).name).read_text()) == [{"targets": ["server:8265"]}]


def test_grafana_finds_its_data_source_and_dashboards(compose):
    folder = ROOT / "backend" / "monitoring" / "grafana"
    [source] = yaml.safe_load((folder / "datasources.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((folder / "dashboards.yml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose["services"]
    mounted = [v.split(":")[1] for v in compose["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/vramscope.json" in mounted
    assert {
        "/etc/grafana/provisioning/datasources/vramscope.yml",
        "/etc/grafana/provisioning/dashboards/vramscope.yml",
    } <= {*mounted}
    dashboard = json.loads((folder / "vramscope.json").read_text())
    (default,) = [one for one in dashboard["templating"]["list"] if one["name"] == "datasource"]
    assert default["current"]["value"] == source["uid"]

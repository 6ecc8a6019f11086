"""What the container files promise: no root, nothing reachable from outside, no password, all pinned."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hivemem_server.postgres.schema import NEWEST_POSTGRES, OLDEST_PGVECTOR, OLDEST_POSTGRES
from hivemem_server.settings import DEFAULT_PORT, Settings

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


@cache
def stages() -> list[list[tuple[str, str]]]:
    """The Dockerfile's instructions, by stage."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for name, rest in lines:
        if name == "FROM":
            found.append([])
        found[-1].append((name, " ".join(rest.split())))
    return found


def said(instruction: str) -> str:
    """The last of these instructions in the stage that runs."""
    return [rest for name, rest in stages()[-1] if name == instruction][-1]


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def services() -> dict[str, Any]:
    composed: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return {**composed["services"], "": composed}


def test_the_image_runs_as_a_user_with_a_number_that_is_not_root() -> None:
    user, _, group = said("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_image_is_built_on_a_pinned_python_that_the_project_supports() -> None:
    (_, version), *_ = [rest.split("=") for name, rest in stages()[0] if name == "ARG"]
    floor = project()["project"]["requires-python"].removeprefix(">=")
    assert [int(part) for part in version.split(".")] >= [int(part) for part in floor.split(".")]
    bases = {stage[0][1].split()[0] for stage in stages()[1:]}
    assert bases == {"python:${PYTHON}-slim-trixie"}, "an environment can only be moved between equal images"


def test_the_image_starts_the_server_without_a_shell_so_that_sigterm_reaches_it() -> None:
    command = json.loads(said("ENTRYPOINT")) + json.loads(said("CMD"))
    assert command[0] in project()["project"]["scripts"]
    assert command[1:] == ["serve"]
    assert said("STOPSIGNAL") == "SIGTERM"


def test_the_image_has_a_health_check_that_asks_the_server() -> None:
    options, _, command = said("HEALTHCHECK").partition(" CMD ")
    assert "--timeout=" in options
    assert json.loads(command) == ["python", "-m", "hivemem_server.health_probe"]


def test_the_image_exposes_the_port_that_the_server_listens_on() -> None:
    assert int(said("EXPOSE")) == DEFAULT_PORT


def test_everything_that_the_wheel_is_made_of_gets_into_the_build() -> None:
    copied = {source for name, rest in stages()[1] if name == "COPY" for source in rest.split()[:-1]}
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = ["pyproject.toml", project()["project"]["readme"], *project()["project"]["license-files"], *wheel]
    assert {Path(path).parts[0] for path in needed} == copied


def test_the_database_is_pinned_to_versions_that_the_server_accepts() -> None:
    found = re.fullmatch(r"pgvector/pgvector:([\d.]+)-pg(\d+)-\w+", services()["postgres"]["image"])
    assert found
    assert tuple(map(int, found[1].split("."))) >= OLDEST_PGVECTOR
    assert OLDEST_POSTGRES <= int(found[2]) <= NEWEST_POSTGRES


def test_nothing_is_published_beyond_the_machine() -> None:
    assert services()["hivemem"]["network_mode"] == "host", "the server itself listens on loopback only"
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_no_password_is_written_down_and_an_unset_one_is_refused() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert re.findall(r"PASSWORD: +(.*)", text) == ["${POSTGRES_PASSWORD:?write it into deploy/.env}"] * 2
    assert re.search(r"^POSTGRES_PASSWORD=$", (DEPLOY / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    assert ".env" in (DEPLOY / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_the_server_waits_for_a_database_that_answers_and_keeps_its_data_in_a_named_volume() -> None:
    assert services()["hivemem"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert "pg_isready" in services()["postgres"]["healthcheck"]["test"]
    [volume] = services()["postgres"]["volumes"]
    name, _, folder = volume.partition(":")
    assert name in services()[""]["volumes"]
    assert folder == "/var/lib/postgresql", "from PostgreSQL 18 on; data at the older place would not be in the volume"


def test_every_variable_given_to_the_server_is_a_setting() -> None:
    lines = [said("ENV"), *services()["hivemem"]["environment"], (DEPLOY / ".env.example").read_text(encoding="utf-8")]
    names = re.findall(r"HIVEMEM_(\w+)", " ".join(lines))
    assert names
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_the_server_gets_the_time_that_it_needs_to_end() -> None:
    assert int(services()["hivemem"]["stop_grace_period"].removesuffix("s")) > 10

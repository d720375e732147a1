"""The examples in deploy/ name only what exists, and their times fit together."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from headrace.base.config import AccessConfig, WatchConfig, all_settings
from headrace.serve.app import ROUTE_FILES
from headrace.serve.front.keys import load_keys

DEPLOY = Path(__file__).parents[2] / "deploy"
PATHS = {route.path for routes in ROUTE_FILES.all().values() for route in routes}  # type: ignore[attr-defined]
SETTINGS = {f"{s.section}_{s.name}".upper(): s for s in all_settings()}
FLAGS = {f"--{s.flag}" for s in all_settings()}


def objects() -> dict[str, Any]:
    return {o["kind"]: o for o in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def container() -> dict[str, Any]:
    (found,) = objects()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


def test_kubernetes_names_flags_variables_and_paths_that_exist() -> None:
    found = container()
    assert {a for a in found["args"] if a.startswith("--")} <= FLAGS
    assert {e["name"].removeprefix("HEADRACE_") for e in found["env"]} <= set(SETTINGS)
    probes = {p: found[p] for p in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {p["httpGet"]["path"] for p in probes.values()} <= PATHS
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert {p["httpGet"]["port"] for p in probes.values()} == {found["ports"][0]["name"]}
    assert found["resources"]["requests"] == found["resources"]["limits"]
    assert found["resources"]["limits"]["cpu"].isdigit()


def test_kubernetes_waits_for_the_drain_and_for_the_watchdog() -> None:
    found, spec = container(), objects()["Deployment"]["spec"]["template"]["spec"]
    drain_s = float(found["args"][found["args"].index("--drain-s") + 1])
    pause_s = float(found["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > drain_s + pause_s
    live, watch = found["livenessProbe"], WatchConfig()
    assert live["periodSeconds"] * live["failureThreshold"] > watch.restart_s + 10


def test_the_keys_of_the_example_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(objects()["Secret"]["stringData"]["keys.yaml"])
    keys = load_keys(AccessConfig(keys_file=str(tmp_path / "keys.yaml")))
    assert len(keys) == 2


def test_the_image_names_what_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert set(re.findall(r"HEADRACE_([A-Z_]+)=", text)) <= {*SETTINGS, "CACHE_DIR"}
    assert set(re.findall(r"127\.0\.0\.1:8000(/\w+)", text)) <= PATHS
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == ["headrace", "serve"]
    kept = [
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    ]
    assert all((DEPLOY.parent / name).exists() for name in kept)
    assert re.search(r"^USER \d+$", text, re.MULTILINE), "not as root"

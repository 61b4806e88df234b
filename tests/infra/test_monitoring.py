"""Alert rules and dashboard query existing metrics, and each rule fires only for its fault."""

import re
import shutil
import subprocess

import pytest
import yaml

from superdl.coordinator.server.metrics import METRICS
from tools.monitoring import ALERTS, alerts, panels

LABELS = {metric.name: {*metric.labels, "instance", "le"} for metric in METRICS}
SERVICES = (
    "super-coordinator",
    "a-super-coordinator",
)  # as the chart names them, which Prometheus's operator takes
COUNTED = "0+{}x30"
# Of each alert, series that show its fault, minute by minute. All else is calm at 0.
FAULTS = {
    "SuperDown": {'up{job="super"}': "0x30"},
    "SuperReadersWait": {'super_wait_seconds_total{job_name="a",cause="limits"}': COUNTED.format(12)},
    "SuperThrottled": {'super_requests_total{executor="lambda",outcome="throttled"}': COUNTED.format(6)},
    "SuperThrash": {"super_cache_thrashing": "1x30"},
    "SuperCacheGone": {"super_cache_trouble": "1x30"},
    "SuperTeamStopped": {'super_team_stopped{team="a"}': "1x30"},
    "SuperCacheFull": {"super_cache_fullest_node_ratio": "0.97x30"},
    "SuperCacheBusy": {"super_cache_busiest_node_ratio": "0.95x30"},
    "SuperCacheEvicts": {"super_cache_evicted_keys_total": COUNTED.format(3)},
    "SuperSpendingSlowed": {"super_spending_limited": "1x30"},
    "SuperSpendingStopped": {"super_spending_limited": "2x30"},
    "SuperExecutorGone": {'super_concurrency_wanted{executor="lambda"}': "0x30"},
    "SuperRequestsFail": {'super_requests_total{executor="lambda",outcome="crashed"}': COUNTED.format(6)},
    "SuperSamplesFail": {'super_samples_made_total{job_name="a",way="failed"}': COUNTED.format(1)},
    "SuperJobLapsed": {'super_jobs{state="lapsed"}': "1x30"},
    "SuperStoreTrouble": {"super_store_trouble": "1x30"},
    "SuperListingStuck": {"super_listings": "1x30", "super_listing_samples": "7x30"},
    "SuperCallsSlow": {
        'super_call_seconds_bucket{method="NextBatches",le="0.5"}': COUNTED.format(50),
        'super_call_seconds_bucket{method="NextBatches",le="1.0"}': COUNTED.format(100),
        'super_call_seconds_bucket{method="NextBatches",le="+Inf"}': COUNTED.format(100),
    },
}
CALM = {
    'up{job="super"}': "1x30",
    'super_wait_seconds_total{job_name="a",cause="limits"}': COUNTED.format(1),
    'super_requests_total{executor="lambda",outcome="answered"}': COUNTED.format(100),
    'super_requests_total{executor="lambda",outcome="throttled"}': COUNTED.format(1),
    'super_requests_total{executor="lambda",outcome="crashed"}': COUNTED.format(1),
    'super_concurrency_wanted{executor="lambda"}': "40x30",
    'super_jobs{state="lapsed"}': "0x30",
    "super_listings": "1x30",
    "super_listing_samples": COUNTED.format(1000),
    'super_call_seconds_bucket{method="NextBatches",le="0.5"}': COUNTED.format(100),
    'super_call_seconds_bucket{method="NextBatches",le="1.0"}': COUNTED.format(100),
    'super_call_seconds_bucket{method="NextBatches",le="+Inf"}': COUNTED.format(100),
    **dict.fromkeys(["super_cache_fullest_node_ratio", "super_cache_busiest_node_ratio"], "0.9x30"),
    "super_cache_evicted_keys_total": "7x30",
    **dict.fromkeys(
        ["super_cache_thrashing", "super_spending_limited", "super_store_trouble", "super_cache_trouble"],
        "0x30",
    ),
}


def expressions():
    drawn = [expr for _, _, lines in panels() for _, expr in lines]
    return drawn + [rule["expr"] for rule in alerts()]


def test_every_metric_and_label_that_is_asked_for_is_in_the_list():
    for expr in expressions():
        asked = re.findall(r"\b(super_[a-z_]+?)(_bucket)?\b(?!_)(\{[^}]*\})?", expr)
        assert asked or "up{" in expr
        for name, _, matchers in asked:
            assert name in LABELS, expr
            labels = set(re.findall(r"(\w+)[!=~]", matchers))
            labels |= {label for found in re.findall(r"by \(([^)]*)\)", expr) for label in found.split(", ")}
            assert labels <= LABELS[name], expr


def test_each_rule_fires_at_its_fault_and_at_no_other(tmp_path):
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("there is no promtool: apt-get install prometheus")
    assert set(FAULTS) == {rule["alert"] for rule in alerts()}
    cases = []
    gone = {name: values for name, values in CALM.items() if not name.startswith("up{")}
    staging = [
        ("", CALM),
        ("SuperDown", gone),
        *((fault, {**CALM, **more}) for fault, more in FAULTS.items()),
    ]
    staging += [("SuperDown", {**gone, f'up{{job="{name}"}}': "0x30"}) for name in SERVICES]
    for fault, series in staging:
        staged = [{"series": name, "values": values} for name, values in series.items()]
        expected = [
            {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": "20m"}
            | {"exp_samples": [{"value": 1}] if name == fault else []}
            for name in FAULTS
        ]
        cases.append({"interval": "1m", "input_series": staged, "promql_expr_test": expected})
    test = tmp_path / "test.yaml"
    test.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": cases}))
    done = subprocess.run(
        [promtool, "test", "rules", str(test)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The inputs of the cost model, each with the source of its figure."""

from __future__ import annotations

from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from superdl.experiments.schema import (
    KNOWN_KEYS,
    AtLeastOne,
    AtLeastZero,
    NonNegativeNumber,
    PositiveNumber,
    Share,
    Text,
    apply_overrides,
    build,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _given(about: str, unit: str = "", default: Any = None, basis: str = "chosen") -> Any:
    return field(default=default, metadata={"about": about, "unit": unit, "basis": basis})


# In this repository, with the command that repeats it: CPU time of one core of the machine of
# docs/performance.md.
def _measured(about: str, unit: str, default: float, by: str) -> Any:
    return _given(about, unit, default, f"measured: {by}")


def _assumed(about: str, unit: str, default: float, why: str) -> Any:
    return _given(about, unit, default, f"assumed: {why}")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class Scenario:
    """A workload, its deployment, and the rates of its parts."""

    samples: AtLeastOne = _given("samples of the dataset", default=1_281_167)
    source_bytes: AtLeastOne = _given("mean size of an encoded image", "bytes", 110_000)
    record_bytes: AtLeastOne = _given("a decoded sample in the cache, header included", "bytes", 150_592)
    random: StrictBool = _given(
        "whether the recipe is random: samples of an epoch are of no use later", default=False
    )
    jobs: AtLeastOne = _given("jobs at the same time, a training machine each", default=1)
    in_step: StrictBool = _given("jobs read in one order (one seed) and keep step", default=True)
    epochs: AtLeastOne = _given("epochs of each job in the month", default=90)
    machine: Text = _given("training machine", default="g4dn.xlarge")
    cache_node: Text = _given("node type of the cache", default="cache.r7g.large")
    cache_nodes: AtLeastOne = _given("nodes of the cache", default=1)
    always_up: StrictBool = _given(
        "cache and coordinator stay all month, else while jobs train", default=False
    )
    one_zone: StrictBool = _given("trainers, functions and cache are in one availability zone", default=True)
    nvme_mb_per_s: PositiveNumber = _assumed(
        "what a training machine's own NVMe reads", "MB/s", 500.0, "not measured; set your own"
    )
    endpoints: AtLeastZero = _given("interface endpoints of the stack on Lambda", default=5)
    cpu_host: Text = _given("CPU host that converts the set", default="c6i.2xlarge")

    images_per_s: PositiveNumber = _assumed(
        "what one GPU of the training machine takes",
        "images/s",
        427.0,
        "ResNet-50 with mixed precision on a T4, 0.6 s for a batch of 256; set your own",
    )
    trainer_vcpus: NonNegativeNumber = _assumed(
        "vCPUs that the training loop itself keeps busy", "", 1.0, "its Python thread"
    )
    # Comparing a vCPU elsewhere to the measured core is a separate assumption.
    x86_vcpu: PositiveNumber = _assumed(
        "a vCPU of x86, against a core of the machine measured",
        "",
        0.5,
        "a vCPU is a hyperthread whose sibling is busy, and g4dn's cores are older",
    )
    arm_vcpu: PositiveNumber = _assumed(
        "a vCPU of Graviton, against the same core", "", 0.75, "a core, but a slower one"
    )
    lambda_vcpu: PositiveNumber = _assumed(
        "the vCPU of a function (1,769 MB), against the same core", "", 0.5, "as for x86, to be safe"
    )
    function_cpu_ms: PositiveNumber = _measured(
        "CPU of a function for a sample: fetch, decode, push", "ms", 1.91, "superdl bench function"
    )
    s3_cpu_ms: PositiveNumber = _measured(
        "CPU of DataLoader, boto3 and Pillow for a sample in S3", "ms", 2.75, "superdl bench read"
    )
    litdata_cpu_ms: PositiveNumber = _assumed(
        "CPU of LitData for a raw sample in S3",
        "ms",
        0.2,
        "0.081 from a disk by superdl bench read, the rest for fetching; set your own",
    )
    chunk_mb: PositiveNumber = _given("what a request for LitData's file brings", "MB", 64.0)
    read_cpu_ms: PositiveNumber = _assumed(
        "CPU of the trainer for a ready sample by TLS, 2 workers",
        "ms",
        0.065,
        "0.0195 without TLS by superdl bench read, the rest for decryption",
    )
    request_samples: AtLeastOne = _given("samples for each invocation, at most", default=64)
    request_s: NonNegativeNumber = _assumed(
        "time of an invocation beside its samples' CPU",
        "s",
        0.05,
        "the first GETs' latency, its share of cold starts",
    )
    function_mb: AtLeastOne = _given(
        "memory of a function; with less than 1,769 it has less than one vCPU", "MB", 1769
    )
    spare: Annotated[float, Field(ge=1)] = _assumed(
        "functions' work against what is needed", "", 1.05, "hedges are 5% at most; retries"
    )
    reserved_share: Share = _given("memory of a cache node that ElastiCache keeps", default=0.15)

    def inputs(self) -> list[dict[str, Any]]:
        """Return name, value, unit, about and basis of all inputs."""
        return [
            {
                "name": entry.name,
                "value": (value := getattr(self, entry.name)),
                **entry.metadata,
                "basis": entry.metadata["basis"] if value == entry.default else "given",
            }
            for entry in fields(self)
        ]


def load_scenario(overrides: Sequence[str] = ()) -> Scenario:
    """Return ImageNet on one T4 with ``key=value`` overrides, or raise ``ConfigError``."""
    return build(Scenario, apply_overrides(asdict(Scenario()), overrides))

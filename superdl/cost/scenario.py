"""The inputs of the cost model, and the basis of each figure."""

from __future__ import annotations

from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
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


# Measured in this repository, with the command to repeat it: CPU time of one core of the machine in
# docs/performance.md.
def _measured(about: str, unit: str, default: float, by: str) -> Any:
    return _given(about, unit, default, f"measured: {by}")


def _assumed(about: str, unit: str, default: float, why: str) -> Any:
    return _given(about, unit, default, f"assumed: {why}")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class Scenario:
    """A workload, its deployment, and the rates of its parts."""

    samples: AtLeastOne = _given("samples in the dataset", default=1_281_167)
    source_bytes: AtLeastOne = _given("mean size of an encoded image", "bytes", 110_000)
    record_bytes: AtLeastOne = _given(
        "size of a decoded sample in the cache, with its header", "bytes", 150_592
    )
    jobs: AtLeastOne = _given(
        "simultaneous jobs in step (one seed), each on its own training machine", default=1
    )
    epochs: AtLeastOne = _given("epochs of each job per month", default=90)
    machine: Text = _given("training machine", default="g4dn.xlarge")
    cache_node: Text = _given("node type of the cache", default="cache.r7g.large")
    cache_nodes: AtLeastOne = _given("number of cache nodes", default=1)
    nvme_mb_per_s: PositiveNumber = _assumed(
        "read speed of a training machine's NVMe", "MB/s", 500.0, "not measured; set your own"
    )
    endpoints: AtLeastZero = _given("interface endpoints of the Lambda stack", default=5)
    cpu_host: Text = _given("CPU host that converts the dataset", default="c6i.2xlarge")

    images_per_s: PositiveNumber = _assumed(
        "throughput of one GPU of the training machine",
        "images/s",
        427.0,
        "ResNet-50 with mixed precision on a T4, 0.6 s for a batch of 256; set your own",
    )
    trainer_vcpus: NonNegativeNumber = _assumed(
        "vCPUs that the training loop itself uses", "", 1.0, "its Python thread"
    )
    # Comparing a vCPU elsewhere to the measured core is a separate assumption.
    x86_vcpu: PositiveNumber = _assumed(
        "speed of an x86 vCPU relative to a core of the measured machine",
        "",
        0.5,
        "a vCPU is a hyperthread whose sibling is busy, and the cores of g4dn are older",
    )
    arm_vcpu: PositiveNumber = _assumed(
        "speed of a Graviton vCPU relative to the same core", "", 0.75, "a whole core, but a slower one"
    )
    lambda_vcpu: PositiveNumber = _assumed(
        "speed of a function's vCPU (1,769 MB) relative to the same core", "", 0.5, "as for x86, to be safe"
    )
    function_cpu_ms: PositiveNumber = _measured(
        "CPU time of a function per sample: fetch, decode, push", "ms", 1.91, "superdl bench function"
    )
    s3_cpu_ms: PositiveNumber = _measured(
        "CPU time of DataLoader, boto3 and Pillow per sample in S3", "ms", 2.75, "superdl bench read"
    )
    litdata_cpu_ms: PositiveNumber = _assumed(
        "CPU time of LitData per raw sample in S3",
        "ms",
        0.2,
        "0.081 from a disk, by superdl bench read, and the rest for fetching; set your own",
    )
    chunk_mb: PositiveNumber = _given("data per request for a LitData file", "MB", 64.0)
    read_cpu_ms: PositiveNumber = _assumed(
        "CPU time of the trainer per ready sample over TLS, with 2 workers",
        "ms",
        0.065,
        "0.0195 without TLS, by superdl bench read, and the rest for decryption",
    )
    request_samples: AtLeastOne = _given("maximum samples per invocation", default=64)
    request_s: NonNegativeNumber = _assumed(
        "time of an invocation in addition to its samples' CPU time",
        "s",
        0.05,
        "the latency of the first GETs, and a share of cold starts",
    )
    function_mb: AtLeastOne = _given(
        "memory of a function; below 1,769 it has less than one vCPU", "MB", 1769
    )
    spare: Annotated[float, Field(ge=1)] = _assumed(
        "work of functions relative to what is needed", "", 1.05, "hedges are at most 5%, plus retries"
    )
    reserved_share: Share = _given("share of a cache node's memory that ElastiCache reserves", default=0.15)

    def inputs(self) -> list[dict[str, Any]]:
        """Return the name, value, unit, description and basis of every input."""
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
    """Return ImageNet on one T4 with ``key=value`` overrides. Raises ``ConfigError`` if one is invalid."""
    return build(Scenario, apply_overrides(asdict(Scenario()), overrides))

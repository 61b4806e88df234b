"""Submit a training job with CPU and GPU hosts to SageMaker (docs/deploy/clusters.md).

This requires ``pip install 'sagemaker<3'``, since version 3 has no ``Estimator``. Set the constants first.
"""

from __future__ import annotations

import secrets
import sys
import time

from sagemaker.estimator import Estimator
from sagemaker.exceptions import CapacityError
from sagemaker.instance_group import InstanceGroup

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/training:1"
ROLE = "arn:aws:iam::123456789012:role/training"
OUTPUT = "s3://bucket/runs"
GPU_HOSTS, CPU_HOSTS = ("ml.g5.xlarge", 2), ("ml.c6i.8xlarge", 2)
SCRIPT, ARGUMENTS = "/opt/train.py", {"epochs": 90, "source": "s3://bucket/imagenet/train"}
MAX_RUN_S = 86_400
SPOT = False
ATTEMPTS, PAUSE_S = 5, 60.0


def estimator() -> Estimator:
    """Return an estimator that describes the job to SageMaker."""
    return Estimator(
        image_uri=IMAGE,
        role=ROLE,
        output_path=OUTPUT,
        container_entry_point=["python3", "-m", "infra.launcher"],
        instance_groups=[
            InstanceGroup("dnn_group", *GPU_HOSTS),
            InstanceGroup("data_group", *CPU_HOSTS),
        ],
        hyperparameters={"train-script": SCRIPT, **ARGUMENTS},
        environment={"SUPER_TOKEN": secrets.token_hex(32), "SUPER_INSECURE": "1", "PYTHONUNBUFFERED": "1"},
        encrypt_inter_container_traffic=True,
        disable_profiler=True,
        debugger_hook_config=False,
        max_run=MAX_RUN_S,
        use_spot_instances=SPOT,
        max_wait=2 * MAX_RUN_S if SPOT else None,
        checkpoint_s3_uri=f"{OUTPUT}/checkpoints" if SPOT else None,
        volume_size=50,
    )


def main() -> int:
    """Submit the job, retrying while AWS has no capacity. Return 3 if all attempts fail."""
    for attempt in range(ATTEMPTS):
        try:
            estimator().fit(wait=True)
        except CapacityError as error:
            sys.stderr.write(f"no capacity (attempt {attempt + 1} of {ATTEMPTS}): {error}\n")
            time.sleep(PAUSE_S * 2**attempt)
        else:
            return 0
    return 3


if __name__ == "__main__":
    sys.exit(main())

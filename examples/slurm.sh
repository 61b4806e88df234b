#!/bin/bash
# Two CPU hosts preprocess for two GPU hosts (docs/deploy/clusters.md): sbatch examples/slurm.sh
# Every host needs SUPER, valkey-server and the script. Set SUPER_TOKEN and the certificates, or SUPER_INSECURE=1 on a
# network that nobody else can reach.
#SBATCH --job-name=superdl
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32 --partition=cpu
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --partition=gpu
set -euo pipefail
: "${SUPER_TOKEN:?}"
cpu=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | head -n 1)
gpu=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1" | head -n 1)
on_first=(srun --het-group=0 --nodes=1 --ntasks=1 --overlap --nodelist="$cpu")

"${on_first[@]}" valkey-server --port 6379 --save "" --maxmemory 64gb --maxmemory-policy noeviction &
"${on_first[@]}" superdl coordinator --executor workers --listen 0.0.0.0:50051 --cache "redis://$cpu:6379" &
srun --het-group=0 --overlap superdl worker --coordinator "$cpu:50051" &
export SUPER_COORDINATOR="$cpu:50051" SUPER_CONNECT_TIMEOUT_S=600
srun --het-group=1 torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "$gpu:29500" --rdzv-id "$SLURM_JOB_ID" train.py

#!/usr/bin/env bash
# Trains on the nodes of a Slurm job: sbatch slurm.sh train.py [options]. NOT tested on a cluster.
# Slurm's warning before the time is up stops the run with a checkpoint; --resume goes on.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
set -eu
cd -- "$SLURM_SUBMIT_DIR"
hosts=hosts.$SLURM_JOB_ID.txt
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/ slots=$SLURM_NTASKS_PER_NODE/" > "$hosts"
script=$1
shift
# exec, so that the signal reaches the launcher
exec bash start_standalone.sh "$script" "$SLURM_NTASKS" --hostfile "$hosts" "$@"

#!/bin/bash
# One job that brings its own scheduler, workers and command:  sbatch docs/guides/cluster/slurm.sh minilm python-docs -o out --max-inputs 400
#SBATCH --job-name=eigenlens
#SBATCH --ntasks=2             # workers; Slurm spreads them over nodes
#SBATCH --cpus-per-task=1      # threads of each: give the same to --threads below
#SBATCH --mem-per-cpu=4G
#SBATCH --time=01:00:00
#SBATCH --requeue              # after the loss of a node the job starts again, and --resume goes on
#SBATCH --open-mode=append

export EIGENLENS_CACHE=${EIGENLENS_CACHE:-$HOME/eigenlens-cache} OMP_NUM_THREADS=1
place=$SLURM_SUBMIT_DIR/scheduler-$SLURM_JOB_ID.json
rm -f "$place"                 # of the time before, if the job was requeued
trap 'rm -f "$place"; kill $(jobs -p) 2>/dev/null' EXIT

dask scheduler --host "$(hostname)" --port 0 --dashboard-address :0 --scheduler-file "$place" &
until [ -s "$place" ]; do sleep 1; done
srun dask worker --scheduler-file "$place" --nthreads 1 --memory-limit 4GiB --dashboard-address :0 --death-timeout 120 &

address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$place")
eigenlens --threads "$SLURM_CPUS_PER_TASK" study "$@" --engine dask --scheduler "$address" --resume

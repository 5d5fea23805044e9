#!/bin/sh
#SBATCH --nodes=2 --exclusive --mem=0 --time=2:00:00 --signal=B:TERM@60
# Runs your suite.yaml on all nodes of this job. Submitted again it resumes that run; another suite needs another --out.
# . "$HOME/venv/bin/activate"
if [ -e runs/mine ]; then
  exec repro run --resume runs/mine
fi
exec repro run suite.yaml --launcher "{kind: slurm, nodes: $SLURM_JOB_NUM_NODES}" --out runs/mine

#!/bin/sh
# Prints the memory of a Slurm job's runs when the job ends, or writes it to a file of VRAMSCOPE_REPORT_DIR.
#
#   EpilogSlurmctld=/etc/slurm/vramscope_epilog.sh   in slurm.conf: runs once a job, on the head node
#   srun --epilog=vramscope_epilog.sh ...            without an administrator
#
# Slurm runs an epilog without PATH, and takes a node out of service if its Epilog fails. So this one always succeeds.
VRAMSCOPE=${VRAMSCOPE:-/opt/vramscope/bin/vramscope}
VRAMSCOPE_SERVER=${VRAMSCOPE_SERVER:-http://127.0.0.1:8265}
export VRAMSCOPE_SERVER PATH="${PATH:-/usr/bin:/bin}"

job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
[ -n "$job" ] || exit 0

report() { timeout 30 "$VRAMSCOPE" report --job "$job" 2>&1; }

if [ -n "$VRAMSCOPE_REPORT_DIR" ]; then
    report >"$VRAMSCOPE_REPORT_DIR/vramscope-$job.txt"
else
    report
fi
exit 0

#!/usr/bin/env bash
# A sweep that outlives the terminal:
#
#   launchers/sweep.sh models                                  # conf/sweep/models.yaml
#   launchers/sweep.sh seeds model=distmult train.epochs=10    # further arguments go to kgexp
#   PYTHON=.venv/bin/python launchers/sweep.sh models          # another interpreter than the first on PATH
set -euo pipefail

if [ $# -lt 1 ]; then
  echo "error: name a sweep, one of the files in conf/sweep: $0 models [KEY=VALUE …]" >&2
  exit 2
fi
sweep=$1
shift
folder=outputs/sweeps/$(date +%Y-%m-%d)/$(date +%H-%M-%S)-$sweep
mkdir -p "$folder"
nohup "${PYTHON:-python}" -m kgexp "sweep=$sweep" "hydra.sweep.dir=$folder" "$@" \
  >"$folder/console.txt" 2>&1 </dev/null &
echo "process $! runs the sweep in $folder; follow it with: tail -f $folder/console.txt"

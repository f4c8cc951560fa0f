#!/usr/bin/env bash
# A sweep on this machine that outlives the terminal:
#
#   launchers/sweep.sh -m model=transe,distmult,complex,rotate seed=0,1,2   # model classes, with three seeds each
#   launchers/sweep.sh sweep=search_complex hydra.launcher.n_jobs=2         # a search, two runs at a time
#   PYTHON=.venv/bin/python launchers/sweep.sh sweep=models                 # another interpreter than the first on PATH
#   FOLDER=outputs/sweeps/2026-11-30/12-00-00 launchers/sweep.sh …          # goes on with a sweep that was stopped
set -euo pipefail

if [ $# -lt 1 ]; then
  echo "error: name what to sweep: $0 -m model=complex,distmult, or $0 sweep=NAME with a file of conf/sweep" >&2
  exit 2
fi
folder=${FOLDER:-outputs/sweeps/$(date +%Y-%m-%d)/$(date +%H-%M-%S)}
mkdir -p "$folder"
nohup "${PYTHON:-python}" -m kgexp "hydra.sweep.dir=$folder" "$@" >>"$folder/console.txt" 2>&1 </dev/null &
echo "process $! runs the sweep in $folder"
echo "follow it with: tail -f $folder/console.txt"
echo "stop it with: kill $!  (its runs save; the same line with FOLDER=$folder goes on)"

#!/usr/bin/env bash
# One run of several ranks by torchrun, which starts them again, from the newest checkpoint, when one of them dies.
# Options of torchrun, as --NAME=VALUE, come first; the rest goes to kgexp:
#
#   launchers/torchrun.sh --nproc-per-node=4 sharding=rowwise model.dim=400
#
# On several machines it is the same line on each, in a folder that all of them see; node1 is one of them, with a free
# port:
#
#   launchers/torchrun.sh --nnodes=2 --rdzv-endpoint=node1:29400 --nproc-per-node=4 sharding=rowwise model.dim=400
#
# Trainers of partitions need no folder in common. Each machine has the data set at the same path; the run is on the
# machine of rank 0, the one whose name sorts first, and resume=auto goes on from there:
#
#   launchers/torchrun.sh --nnodes=2 --rdzv-endpoint=node1:29400 sharding=partitioned sharding.partitions=4 \
#     scoring=negatives hydra.run.dir=/data/run resume=auto
#
# With --nnodes=1:2 the run goes on with one machine when the other is lost, unless that is node1.
# GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network interface where the host's name leads to another one.
set -euo pipefail

options=()
while [[ ${1:-} == --*=* ]]; do
  options+=("$1")
  shift
done
if [[ " ${options[*]:-}" == *" --rdzv-endpoint="* ]]; then
  options=(--rdzv-backend=c10d "${options[@]}")
else
  options=(--standalone "${options[@]}")
fi
# A lost rank is said in a sentence; torch would print the stack of every connection to it before.
export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-ERROR}"
# USR2 besides torchrun's own: the ranks are told, have two minutes to save, and stop.
exec "${PYTHON:-python}" -m torch.distributed.run --max-restarts=3 \
  --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR2 --shutdown-timeout=120 "${options[@]}" -m kgexp "$@"

#!/bin/sh
# Try pg_mop on a GPU: gpu_trial.sh folder | [STEP ...]. The machine needs no network and no PostgreSQL.
#
# `gpu_trial.sh folder`, on a machine with network, makes the folder FOLDER (by default .local/gpu-folder; under 60 MiB) with
# the sources of PostgreSQL and wheels for Python VERSION (3.12). Copy the checkout with this folder to the machine with the
# GPU. There, `gpu_trial.sh` runs all steps and prints a table with the card's name:
#
#   look                    what the machine has; names everything that is missing
#   build                   PostgreSQL with PL/Python, the packages, the extension
#   jax torch               the conformance class of one server, on each framework
#   shared                  two segments that share one GPU
#   killed                  the GPU memory of killed trainers is free again
#   vmap                    16 configurations as one computation against one by one
#   dense-wide cnn          pg_mop against a plain loop in the framework's own idiom
#   table                   the results so far
#
# `check` stands for the steps from jax to killed, `bench` for vmap, dense-wide and cnn, `all` for all. What is built is kept
# in TRIAL (by default /var/tmp/pg_mop_gpu). The frameworks are those of PYTHON (by default python3). A step ends after LIMIT
# seconds (540). If it fails, the others still run; the exit status is 1 then. On a machine without a GPU, the steps run on
# processors with a tenth of the rows (SHARE), and the table says 'no GPU'. Started by root, the steps run as the user
# postgres, who is created if missing.
set -eu
exec "${PYTHON:-python3}" -B "$(dirname "$0")/gpu_trial" "$@"

#!/usr/bin/env bash
# Judges what came back from a GPU, on a CPU: bash benchmarks/gpu/score.sh OUT CSV
# OUT holds results.tar of run.sh. A row for each metric of each run that wrote samples goes to CSV; values that are there
# already stay. DATA=FOLDER names the folder with smcalflow/ and sgd/ (default: ../shared/data).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give the folder that run.sh filled}
csv=${2:?give the CSV file to write}
data=${DATA:-../shared/data}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out/results"
tar --extract --file "$out/results.tar" --directory "$out/results"
gunzip --recursive --force "$out/results"
for run in "$out"/results/*/; do
    for samples in "$run"synthetic*.jsonl; do
        [ -e "$samples" ] || continue
        [ ! -e "${samples%.jsonl}.json" ] || continue
        set=smcalflow
        grep -q 'sgd/train' "$run/experiment.yaml" && set=sgd
        "$python" cli.py evaluate --synthetic "$samples" --reference "$data/$set/valid.dataflow_dialogues.jsonl.zip" \
            --num-samples 1711 --seed 1 --out "${samples%.jsonl}.json"
    done
done
"$python" -m benchmarks.gpu.scores "$out" "$csv"

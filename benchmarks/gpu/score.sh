#!/usr/bin/env bash
# Judges what came back from a GPU, on a CPU: bash benchmarks/gpu/score.sh OUT CSV [halves]
# OUT holds results.tar of run.sh. A row for each metric of each run that wrote samples goes to CSV; values that are there
# already stay. With `halves` 861 samples are compared with each half of the dialogues of SMCalFlow's valid: settings are
# chosen on the first and reported on the second. What one half of valid has taught is compared with the other half.
# DATA=FOLDER has smcalflow/ and sgd/ (default: ../shared/data).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give the folder that run.sh filled}
csv=${2:?give the CSV file to write}
data=${DATA:-../shared/data}
python=${PYTHON:-.venv/bin/python}
valid=valid.dataflow_dialogues.jsonl
mkdir -p "$out/results"
tar --extract --file "$out/results.tar" --directory "$out/results"
gunzip --recursive --force "$out/results"
compare() { # samples, reference, number, file to write, more options
    [ -e "$4" ] || "$python" cli.py evaluate --synthetic "$1" --reference "$2" --num-samples "$3" --seed 1 --out "$4" "${@:5}"
}
if [ "${3:-}" = halves ]; then
    unzip -p "$data/smcalflow/$valid.zip" >"$out/$valid"
    half=$(($(wc -l <"$out/$valid") / 2))
    head -n "$half" "$out/$valid" >"$out/a.dataflow_dialogues.jsonl"
    tail -n "+$((half + 1))" "$out/$valid" >"$out/b.dataflow_dialogues.jsonl"
fi
for samples in "$out"/results/*/*/samples.jsonl; do
    [ -s "$samples" ] || continue
    public=$(dirname "$samples")/../public
    if [ -e "$public/config.yaml" ]; then
        compare "$samples" "$data/smcalflow/$valid.zip" 855 "${samples%.jsonl}.json" --taught "$public"
        continue
    fi
    if [ "${3:-}" = halves ]; then
        for half in a b; do
            compare "$samples" "$out/$half.dataflow_dialogues.jsonl" 861 "${samples%.jsonl}.$half.json"
        done
        continue
    fi
    set=smcalflow
    grep -q 'sgd/train' "$(dirname "$samples")/../experiment.yaml" && set=sgd
    compare "$samples" "$data/$set/$valid.zip" 1711 "${samples%.jsonl}.json"
done
"$python" -m benchmarks.gpu.scores "$out" "$csv"

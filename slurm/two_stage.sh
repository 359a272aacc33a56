#!/usr/bin/env bash
# Two-stage private synthesis from data to report, stage after stage.
#
#   slurm/two_stage.sh --local CONFIG_DIR RUN_DIR
#
# CONFIG_DIR holds the experiment (configs/experiments/quickstart is the smallest), RUN_DIR receives everything:
#   one_stage/ parse_tree/ parse2utterance/     trained models, with checkpoints, configuration and W&B files
#   synthetic_one_stage.jsonl, trees.jsonl, synthetic.jsonl     samples
#   ledger.jsonl, report.json                   what was spent, and every metric
# A finished stage is skipped when the command is run again; an interrupted one goes on where it stopped.
set -euo pipefail

usage() {
    sed -n '2,11s/^# \{0,1\}//p' "$0"
}

mode=""
case "${1:-}" in
    --local) mode=local; shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "error: give --local; submission to SLURM is not there yet" >&2; exit 2 ;;
esac
if [ $# -ne 2 ]; then
    usage >&2
    echo "error: give CONFIG_DIR and RUN_DIR" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
experiment=$(cd "$1" 2>/dev/null && pwd) || { echo "error: no folder $1: give a folder of configs/experiments" >&2; exit 2; }
umask 077
mkdir -p "$2"
run=$(cd "$2" && pwd)
[ -f "$experiment/pipeline.env" ] || { echo "error: $experiment has no pipeline.env: copy one from configs/experiments/quickstart" >&2; exit 2; }
cd "$root"

# Settings of the experiment; a variable that is set already wins.
while IFS='=' read -r key value; do
    case "$key" in '' | '#'*) continue ;; esac
    [ -n "${!key:-}" ] || export "$key=$(eval "echo \"$value\"")"
done < "$experiment/pipeline.env"
: "${NUM_SAMPLES:?set it in $experiment/pipeline.env}" "${REFERENCE:?set it in $experiment/pipeline.env}"

if [ -x "$root/.venv/bin/python" ] && [ -z "${PYTHON:-}" ]; then PYTHON="$root/.venv/bin/python"; fi
export WANDB_SILENT=${WANDB_SILENT:-true}
doppel() { "${PYTHON:-python}" cli.py "$@"; }

# run_stage NAME COMMAND…: run a stage once, and write down how long it took.
run_stage() {
    local name=$1 start
    shift
    if [ -f "$run/.done/$name" ]; then
        echo "── $name: done already, skipped"
        return
    fi
    echo "── $name"
    start=$(date +%s)
    "$@"
    mkdir -p "$run/.done"
    echo "$(($(date +%s) - start))" > "$run/.done/$name"
}

# fit STAGE MODEL_CONFIG OVERLAY
fit() {
    local stage=$1 resume=()
    if [ -f "$run/$stage/checkpoints/last.ckpt" ]; then
        echo "   resuming from $stage/checkpoints/last.ckpt"
        resume=(--ckpt_path "$run/$stage/checkpoints/last.ckpt")
    fi
    doppel fit --config configs/trainer.yaml --config "$2" --config "$experiment/data.yaml" \
        --config "$experiment/$stage.yaml" --config "$3" --run_dir "$run/$stage" "${resume[@]}"
}

# sample STAGE MODEL_CONFIG OUTPUT [PROMPTS]
sample() {
    local stage=$1 prompts=()
    [ $# -lt 4 ] || prompts=(--data.init_args.prompts_path "$4")
    doppel predict --config configs/trainer.yaml --config "$2" --config "$experiment/$stage.yaml" \
        --config configs/sample.yaml --run_dir "$run/sample_$stage" --ckpt_path "$run/$stage/checkpoints/last.ckpt" \
        --data.init_args.num_samples "$NUM_SAMPLES" "${prompts[@]}" \
        --trainer.callbacks.init_args.output_path "$3" --trainer.callbacks.init_args.stage "$stage"
}

# evaluate SYSTEM SYNTHETIC
evaluate() {
    local private=()
    [ -z "${PRIVATE:-}" ] || private=(--private "$PRIVATE")
    doppel evaluate --synthetic "$2" --reference "$REFERENCE" --out "$run/evaluation/$1.json" \
        --featurizer "${FEATURIZER:-models/base}" "${private[@]}"
}

run_stage one_stage fit one_stage configs/utterance_lm.yaml "$experiment/dp_one_stage.yaml"
run_stage parse_tree fit parse_tree configs/parse_tree_lm.yaml "$experiment/dp_two_stage.yaml"
run_stage parse2utterance fit parse2utterance configs/parse2utterance.yaml "$experiment/dp_two_stage.yaml"
run_stage sample_one_stage sample one_stage configs/utterance_lm.yaml "$run/synthetic_one_stage.jsonl"
run_stage sample_trees sample parse_tree configs/parse_tree_lm.yaml "$run/trees.jsonl"
run_stage sample_utterances sample parse2utterance configs/parse2utterance.yaml "$run/synthetic.jsonl" "$run/trees.jsonl"
run_stage evaluate_one_stage evaluate one_stage "$run/synthetic_one_stage.jsonl"
run_stage evaluate_two_stage evaluate two_stage "$run/synthetic.jsonl"
doppel report "$run"

#!/usr/bin/env bash
# End-to-end adaptation: a parser learns, from private utterances that nobody reads, a function that it lacks.
#
#   slurm/adaptation.sh --local CONFIG_DIR RUN_DIR
#
# The experiment of Mireshghallah et al., section 5.4 (Tables 3, 5 and 8), stage after stage:
#   data/                        D_pub (lacks the function MISSING), D_priv (utterances alone), test
#   parser_none/                 φ0, the parser that D_pub alone teaches
#   data/private_annotated.jsonl D_priv with the trees that φ0 gives it
#   one_stage/ parse_tree/ …     private models of D_priv and their samples D_s, by slurm/two_stage.sh
#   annotated_SYSTEM.jsonl       D_s with the trees of the high-resource parser, which stands in for human annotators
#   parser_SYSTEM/               the parser that D_pub and D_s teach
#   parser_metrics/SYSTEM.json   its accuracy on the test, with and without the function
#   evaluation/SYSTEM.json, ledger.jsonl, report.json     metrics of the samples, what was spent, everything together
# A finished stage is skipped when the command is run again; an interrupted one goes on where it stopped.
#
# Variables, which win over those of CONFIG_DIR/pipeline.env; those of slurm/two_stage.sh hold too:
#   EPSILON      target ε (default 3); inf trains without privacy
#   SEED         seed of the split, data order, dropout and sampling; never of the privacy noise
#   SYSTEMS      of slurm/two_stage.sh, and "full": the high-resource parser itself; default "one_stage two_stage full"
#   MISSING      function that D_pub lacks: a name, or a prefix and a star
#   TRAIN, PUBLIC_SHARE, TEST, TEST_SHARE, BY     see `python cli.py partition --help`
#   PARSER       checkpoint of the high-resource parser; without it one is trained on all of TRAIN but the test
#   ROUNDS       above 1: also the system "iterative", beyond the paper: each round annotates D_priv with the parser of
#                the round before, so that trees of later rounds know the function
#   ROUND_EPOCHS epochs of p(y) and p(x|y) in each round, such as "1 4 1 4"; they share one budget and one σ
#
# Privacy. One unit is one line of D_priv. Its tree is a function of its utterance and of a parser, nothing else: φ0 has
# seen D_pub alone, and the parser of a later round D_pub and samples of the rounds before, which is post-processing of
# what DP-SGD released. So a neighbour of D_priv changes one line of the annotated file, in every round, and every
# stage is DP-SGD on a file that depends on earlier releases alone: adaptive composition, which the ledger does in the
# scope "iterative", whose σ is calibrated for the steps of all rounds before the first of them. The high-resource
# parser stands in for people who label the (released) samples. In this experiment it has seen the trees of D_priv, for
# want of people: what it adds is knowledge of the annotators, and no ε covers it.
set -euo pipefail

usage() {
    sed -n '2,31s/^# \{0,1\}//p' "$0"
}
fail() {
    echo "error: $1" >&2
    exit 2
}

case "${1:-}" in
    --local) shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "give --local; submission to SLURM is not there yet" ;;
esac
[ $# -eq 2 ] || { usage >&2; fail "give CONFIG_DIR and RUN_DIR"; }
root=$(cd "$(dirname "$0")/.." && pwd)
experiment=$(cd "$1" 2>/dev/null && pwd) || fail "no folder $1: give a folder of configs/experiments"
[ -f "$experiment/pipeline.env" ] || fail "$experiment has no pipeline.env: copy one from configs/experiments/adaptation-weather-small"
[ -f "$experiment/parser.yaml" ] || fail "$experiment has no parser.yaml: copy one from configs/experiments/adaptation-weather-small"
if [ -n "${PARSER:-}" ]; then
    [ -f "$PARSER" ] || fail "PARSER is $PARSER, which is no file: give RUN/parser/checkpoints/last.ckpt, or leave it out"
    PARSER=$(realpath "$PARSER")
fi
umask 077
mkdir -p "$2"
run=$(cd "$2" && pwd)
cd "$root"

# Settings of the experiment; a variable that is set already wins.
while IFS='=' read -r key value; do
    case "$key" in '' | '#'*) continue ;; esac
    [ -n "${!key:-}" ] || export "$key=$(eval "echo \"$value\"")"
done < "$experiment/pipeline.env"
: "${TRAIN:?set it in $experiment/pipeline.env}" "${MISSING:?set it in $experiment/pipeline.env}" "${NUM_SAMPLES:?set it in $experiment/pipeline.env}"
export EPSILON=${EPSILON:-3} SEED=${SEED:-1} REFERENCE=${REFERENCE:-$run/data/test.jsonl}
[[ "$EPSILON" =~ ^([0-9]*\.?[0-9]+|inf)$ ]] || fail "EPSILON is $EPSILON: give a number above 0, or inf"
[[ "$SEED" =~ ^[0-9]+$ ]] || fail "SEED is $SEED: give a whole number"
ROUNDS=${ROUNDS:-1}
[[ "$ROUNDS" =~ ^[1-9][0-9]*$ ]] || fail "ROUNDS is $ROUNDS: give a whole number above 0"
read -r -a round_epochs <<< "${ROUND_EPOCHS:-}"
[ "$ROUNDS" -eq 1 ] || [ ${#round_epochs[@]} -eq $((2 * ROUNDS)) ] \
    || fail "ROUNDS is $ROUNDS, but ROUND_EPOCHS is '${ROUND_EPOCHS:-}': give epochs of p(y) and p(x|y) for each round"
synthesised=() full=""
SYSTEMS=${SYSTEMS:-one_stage two_stage full}
for system in $SYSTEMS; do
    case "$system" in
        full) full=1 ;;
        none) ;; # always there
        iterative) fail "give ROUNDS and ROUND_EPOCHS for the system iterative, instead of naming it in SYSTEMS" ;;
        *) synthesised+=("$system") ;;
    esac
done

[ ${#synthesised[@]} -gt 0 ] || fail "SYSTEMS is '$SYSTEMS': name one that is synthesised too, one_stage or two_stage"

# A run folder holds one setting: another one would mix its parts.
settings="TRAIN=$TRAIN
TEST=${TEST:-} ${TEST_SHARE:-}
MISSING=$MISSING
PUBLIC_SHARE=${PUBLIC_SHARE:-0.1}
BY=${BY:-turn}
SEED=$SEED
PARSER=${PARSER:+$(sha256sum "$PARSER" | cut -c1-16)}"
if [ -f "$run/adaptation.env" ]; then
    known=$(cat "$run/adaptation.env")
    [ "$known" = "$settings" ] || fail "$run was started with other settings ($(diff <(echo "$known") <(echo "$settings") | grep '^[<>]' | tr '\n' ' ')): restore them, or give another RUN_DIR"
else
    echo "$settings" > "$run/adaptation.env"
fi

if [ -x "$root/.venv/bin/python" ] && [ -z "${PYTHON:-}" ]; then PYTHON="$root/.venv/bin/python"; fi
export WANDB_SILENT=${WANDB_SILENT:-true}
doppel() { "${PYTHON:-python}" cli.py "$@"; }

# run_stage NAME COMMAND…: run a stage once, and write down how long it took.
run_stage() {
    local name=$1 start
    shift
    if [ -f "$run/.adaptation/$name" ]; then
        echo "── $name: done already, skipped"
        return
    fi
    echo "── $name"
    start=$(date +%s)
    "$@"
    mkdir -p "$run/.adaptation"
    echo "$(($(date +%s) - start))" > "$run/.adaptation/$name"
}

partition() {
    local more=()
    [ -z "${TEST:-}" ] || more+=(--test "$TEST")
    [ -z "${TEST_SHARE:-}" ] || more+=(--test-share "$TEST_SHARE")
    doppel partition --train "$TRAIN" --missing "$MISSING" --public-share "${PUBLIC_SHARE:-0.1}" --seed "$SEED" \
        --by "${BY:-turn}" --out "$run/data" "${more[@]}"
}

# fit_parser NAME OVERLAY TRAIN_FILE…: train the parser RUN_DIR/parser_NAME.
fit_parser() {
    local name=$1 overlay=$2 more=() files
    shift 2
    files=$(printf ', "%s"' "$@")
    [ ! -f "$experiment/$overlay.yaml" ] || more+=(--config "$experiment/$overlay.yaml")
    if [ -f "$run/parser_$name/checkpoints/last.ckpt" ]; then
        echo "   resuming from parser_$name/checkpoints/last.ckpt"
        more+=(--ckpt_path "$run/parser_$name/checkpoints/last.ckpt")
    fi
    doppel fit --config configs/trainer.yaml --config configs/semantic_parser.yaml --config "$experiment/parser.yaml" \
        "${more[@]}" --data.init_args.train_paths "[${files#, }]" --seed_everything "$SEED" --run_dir "$run/parser_$name"
}

# annotate PARSER NAME INPUT OUTPUT: trees of a parser (RUN_DIR/parser_PARSER, or a checkpoint) for a file's utterances.
annotate() {
    local checkpoint="$run/parser_$1/checkpoints/last.ckpt" unit=utterance
    [ "$1" != full ] || checkpoint=${PARSER:-$checkpoint}
    case "$2" in private*) unit=dialogue ;; esac # D_priv keeps its units, whatever the guarantee protects
    doppel predict --config configs/trainer.yaml --config configs/semantic_parser.yaml --config configs/annotate.yaml \
        --run_dir "$run/annotate_$2" --ckpt_path "$checkpoint" --data.init_args.path "$3" \
        --data.init_args.unit "$unit" --trainer.callbacks.init_args.output_path "$4" --trainer.callbacks.init_args.stage "$2"
}

# fit_round ROUND STAGE MODEL ANNOTATED: one private training of a round, in the one budget of all rounds.
fit_round() {
    local round=$1 stage=$2 folder="iterative_$1_$2" all privacy=() more=() index
    all=$(IFS=,; echo "[${round_epochs[*]}]")
    index=$((2 * (round - 1)))
    [ "$stage" = parse_tree ] || index=$((index + 1))
    if [ "$EPSILON" = inf ]; then
        more+=(--data.init_args.sampling shuffle)
    else
        privacy=(--config "$experiment/dp_two_stage.yaml" --trainer.callbacks.init_args.scope iterative
            --trainer.callbacks.init_args.target_epsilon "$EPSILON" --trainer.callbacks.init_args.epochs "$all")
    fi
    if [ "$round" -gt 1 ]; then # go on from the round before: its weights are a release of the same scope
        more+=(--model.init_args.init_weights "$run/iterative_$((round - 1))_$stage")
    fi
    if [ -f "$run/$folder/checkpoints/last.ckpt" ]; then
        echo "   resuming from $folder/checkpoints/last.ckpt"
        more+=(--ckpt_path "$run/$folder/checkpoints/last.ckpt")
    fi
    local fit_args_here=FIT_ARGS_${EPSILON/./_}
    # shellcheck disable=SC2086
    doppel fit --config configs/trainer.yaml --config "configs/$3.yaml" --config "$experiment/data.yaml" \
        --config "$experiment/$stage.yaml" "${privacy[@]}" --data.init_args.train_path "$4" \
        --trainer.max_epochs "${round_epochs[$index]}" --seed_everything "$SEED" --run_dir "$run/$folder" "${more[@]}" \
        ${FIT_ARGS:-} ${!fit_args_here:-}
}

# sample_round ROUND STAGE MODEL OUTPUT [PROMPTS]
sample_round() {
    local folder="iterative_$1_$2" more=()
    [ $# -lt 5 ] || more=(--data.init_args.prompts_path "$5")
    doppel predict --config configs/trainer.yaml --config "configs/$3.yaml" --config "$experiment/$2.yaml" \
        --config configs/sample.yaml --run_dir "$run/sample_$folder" --ckpt_path "$run/$folder/checkpoints/last.ckpt" \
        --data.init_args.num_samples "$NUM_SAMPLES" --seed_everything "$SEED" --model.init_args.sampling.seed "$SEED" \
        --trainer.callbacks.init_args.output_path "$4" --trainer.callbacks.init_args.stage "$folder" "${more[@]}"
}

# evaluate SYSTEM SYNTHETIC
evaluate() {
    doppel evaluate --synthetic "$2" --reference "$REFERENCE" --out "$run/evaluation/$1.json" --seed "$SEED" \
        --featurizer "${FEATURIZER:-models/base}" --parser "$PARSER"
}

# retrain SYSTEM SYNTHETIC: annotate the samples as experts would, and teach them to a new parser.
retrain() {
    run_stage "annotate_$1" annotate full "$1" "$2" "$run/annotated_$1.jsonl"
    run_stage "parser_$1" fit_parser "$1" parser_augmented "$run/data/public.jsonl" "$run/annotated_$1.jsonl"
}

# score SYSTEM: accuracy of a parser on the test.
score() {
    annotate "$1" "test_$1" "$run/data/test.jsonl" "$run/parsed_test/$1.jsonl"
    doppel parser-metrics --predicted "$run/parsed_test/$1.jsonl" --gold "$run/data/test.jsonl" --function "$MISSING" \
        --out "$run/parser_metrics/$1.json"
}

annotated="$run/data/private_annotated.jsonl"
run_stage partition partition
run_stage parser_none fit_parser none parser_low "$run/data/public.jsonl"
run_stage score_none score none
run_stage annotate_private annotate none private "$run/data/private.jsonl" "$annotated"
if [ -z "${PARSER:-}" ]; then
    run_stage parser_full fit_parser full parser_full "$run/data/full.jsonl"
    PARSER="$run/parser_full/checkpoints/last.ckpt"
fi
export PARSER
[ -z "$full" ] || run_stage score_full score full

export ANNOTATED="$annotated" # data.yaml names it
SYSTEMS="${synthesised[*]}" bash slurm/two_stage.sh --local "$experiment" "$run"
for system in "${synthesised[@]}"; do
    synthetic="$run/synthetic_$system.jsonl"
    [ "$system" != two_stage ] || synthetic="$run/synthetic.jsonl"
    retrain "$system" "$synthetic"
    run_stage "score_$system" score "$system"
done

if [ "$ROUNDS" -gt 1 ]; then
    parser=none
    for round in $(seq "$ROUNDS"); do
        name="iterative_$round" trees="$run/iterative_${round}_trees.jsonl" synthetic="$run/synthetic_iterative_$round.jsonl"
        [ "$round" -lt "$ROUNDS" ] || name=iterative synthetic="$run/synthetic_iterative.jsonl"
        if [ "$round" -gt 1 ]; then
            annotated="$run/data/private_annotated_$round.jsonl"
            run_stage "annotate_private_$round" annotate "$parser" "private_$round" "$run/data/private.jsonl" "$annotated"
        fi
        run_stage "iterative_${round}_parse_tree" fit_round "$round" parse_tree parse_tree_lm "$annotated"
        run_stage "iterative_${round}_parse2utterance" fit_round "$round" parse2utterance parse2utterance "$annotated"
        run_stage "sample_iterative_${round}_trees" sample_round "$round" parse_tree parse_tree_lm "$trees"
        run_stage "sample_iterative_${round}_utterances" sample_round "$round" parse2utterance parse2utterance "$synthetic" "$trees"
        retrain "$name" "$synthetic"
        run_stage "score_$name" score "$name"
        parser=$name
    done
    run_stage evaluate_iterative evaluate iterative "$synthetic"
fi
doppel report "$run"

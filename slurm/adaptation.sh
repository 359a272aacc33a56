#!/usr/bin/env bash
# End-to-end adaptation: a parser learns, from private utterances that nobody reads, a function that it lacks.
#
#   slurm/adaptation.sh [--submit] CONFIG_DIR RUN_DIR    as SLURM jobs that wait for one another (slurm/README.md)
#   slurm/adaptation.sh --local CONFIG_DIR RUN_DIR       here, one after the other
#   slurm/adaptation.sh --dry-run CONFIG_DIR RUN_DIR     print what would be submitted, and write nothing
#   slurm/adaptation.sh --check CONFIG_DIR RUN_DIR       parse the configuration of every training and sampling
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
# shellcheck source=slurm/synthesis.sh
source "$(dirname "${BASH_SOURCE[0]}")/synthesis.sh"
marks=.adaptation

adaptation_settings() {
    [ -f "$present/parser.yaml" ] || fail "$present has no parser.yaml: copy one from configs/experiments/adaptation-weather-small"
    needs TRAIN MISSING NUM_SAMPLES
    export EPSILON=${EPSILON:-3} SEED=${SEED:-1} REFERENCE=${REFERENCE:-$run/data/test.jsonl}
    [[ "$EPSILON" =~ ^([0-9]*\.?[0-9]+|inf)$ ]] || fail "EPSILON is $EPSILON: give a number above 0, or inf"
    [[ "$SEED" =~ ^[0-9]+$ ]] || fail "SEED is $SEED: give a whole number"
    ROUNDS=${ROUNDS:-1}
    [[ "$ROUNDS" =~ ^[1-9][0-9]*$ ]] || fail "ROUNDS is $ROUNDS: give a whole number above 0"
    read -r -a round_epochs <<< "${ROUND_EPOCHS:-}"
    [ "$ROUNDS" -eq 1 ] || [ ${#round_epochs[@]} -eq $((2 * ROUNDS)) ] ||
        fail "ROUNDS is $ROUNDS, but ROUND_EPOCHS is '${ROUND_EPOCHS:-}': give epochs of p(y) and p(x|y) for each round"
    synthesised=() full=""
    SYSTEMS=${SYSTEMS:-one_stage two_stage full}
    local system
    for system in $SYSTEMS; do
        case "$system" in
            full) full=1 ;;
            none) ;; # always there
            iterative) fail "give ROUNDS and ROUND_EPOCHS for the system iterative, instead of naming it in SYSTEMS" ;;
            *) synthesised+=("$system") ;;
        esac
    done
    [ ${#synthesised[@]} -gt 0 ] || fail "SYSTEMS is '$SYSTEMS': name one that is synthesised too, one_stage or two_stage"
    keep_split
    synthesis_settings "${synthesised[@]}"
}

# A run folder holds one split: another one would mix its parts.
keep_split() {
    local file="$run/adaptation.env" known settings="TRAIN=$TRAIN
TEST=${TEST:-} ${TEST_SHARE:-}
MISSING=$MISSING
PUBLIC_SHARE=${PUBLIC_SHARE:-0.1}
BY=${BY:-turn}
SEED=$SEED
PARSER=${PARSER:+$(sha256sum "$PARSER" | cut -c1-16)}"
    if [ -f "$file" ]; then
        known=$(cat "$file")
        [ "$known" = "$settings" ] || fail "$run was started with other settings ($(diff <(echo "$known") <(echo "$settings") | grep '^[<>]' | tr '\n' ' ')): restore them, or give another RUN_DIR"
    elif writes; then
        echo "$settings" > "$file"
    fi
}

partition() {
    local more=()
    [ -z "${TEST:-}" ] || more+=(--test "$TEST")
    [ -z "${TEST_SHARE:-}" ] || more+=(--test-share "$TEST_SHARE")
    stage partition tool "" "${doppel[@]}" partition --train "$TRAIN" --missing "$MISSING" \
        --public-share "${PUBLIC_SHARE:-0.1}" --seed "$SEED" --by "${BY:-turn}" --out "$run/data" "${more[@]}"
}

# fit_parser NAME "DEP …" OVERLAY TRAIN_FILE…: train the parser RUN_DIR/parser_NAME.
fit_parser() {
    local name=$1 after=$2 overlay=$3 more=() files
    shift 3
    files=$(printf ', "%s"' "$@")
    [ ! -f "$present/$overlay.yaml" ] || more+=(--config "$experiment/$overlay.yaml")
    stage "parser_$name" fit "$after" "${doppel[@]}" fit --config "${code}configs/trainer.yaml" \
        --config "${code}configs/semantic_parser.yaml" --config "$experiment/parser.yaml" "${more[@]}" \
        --data.init_args.train_paths "[${files#, }]" --seed_everything "$SEED" --run_dir "$run/parser_$name"
}

# annotate PARSER "DEP …" NAME INPUT OUTPUT: trees of a parser (RUN_DIR/parser_PARSER, or a checkpoint) for a file's utterances.
annotate() {
    local checkpoint="$run/parser_$1/checkpoints/last.ckpt" unit=utterance
    [ "$1" != full ] || checkpoint=$PARSER
    case "$3" in private*) unit=dialogue ;; esac # D_priv keeps its units, whatever the guarantee protects
    stage "annotate_$3" predict "$2" "${doppel[@]}" predict --config "${code}configs/trainer.yaml" \
        --config "${code}configs/semantic_parser.yaml" --config "${code}configs/annotate.yaml" \
        --run_dir "$run/annotate_$3" --ckpt_path "$checkpoint" --data.init_args.path "$4" --data.init_args.unit "$unit" \
        --trainer.callbacks.init_args.output_path "$5" --trainer.callbacks.init_args.stage "$3"
}

# fit_round ROUND STAGE "DEP …" ANNOTATED: one private training of a round, in the one budget of all rounds.
fit_round() {
    local round=$1 stage=$2 after=$3 folder="iterative_$1_$2" all privacy=() more=() index overlay
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
        after+=" iterative_$((round - 1))_$stage"
    fi
    for overlay in ${OVERLAYS:-}; do more+=(--config "$code$overlay"); done # of the profile
    # shellcheck disable=SC2086
    stage "$folder" fit "$after" "${doppel[@]}" fit --config "${code}configs/trainer.yaml" \
        --config "${code}configs/${model_of[$stage]}.yaml" --config "$experiment/data.yaml" \
        --config "$experiment/$stage.yaml" "${privacy[@]}" --data.init_args.train_path "$4" \
        --trainer.max_epochs "${round_epochs[$index]}" --seed_everything "$SEED" --run_dir "$run/$folder" "${more[@]}" $FIT_ARGS
}

# sample_round ROUND STAGE "DEP …" OUTPUT [PROMPTS]
sample_round() {
    local folder="iterative_$1_$2" name="sample_iterative_$1_utterances" more=()
    [ "$2" != parse_tree ] || name="sample_iterative_$1_trees"
    [ $# -lt 5 ] || more=(--data.init_args.prompts_path "$5")
    stage "$name" predict "$3" "${doppel[@]}" predict --config "${code}configs/trainer.yaml" \
        --config "${code}configs/${model_of[$2]}.yaml" --config "$experiment/$2.yaml" --config "${code}configs/sample.yaml" \
        --run_dir "$run/sample_$folder" --ckpt_path "$run/$folder/checkpoints/last.ckpt" \
        --data.init_args.num_samples "$NUM_SAMPLES" --seed_everything "$SEED" --model.init_args.sampling.seed "$SEED" \
        --trainer.callbacks.init_args.output_path "$4" --trainer.callbacks.init_args.stage "$folder" "${more[@]}"
}

# retrain SYSTEM "DEP …" SYNTHETIC: annotate the samples as experts would, and teach them to a new parser.
retrain() {
    annotate full "$2 $evaluate_after" "$1" "$3" "$run/annotated_$1.jsonl"
    fit_parser "$1" "partition annotate_$1" parser_augmented "$run/data/public.jsonl" "$run/annotated_$1.jsonl"
    score "$1" "parser_$1"
}

# score SYSTEM "DEP …": accuracy of a parser on the test.
score() {
    is_done "score_$1" || annotate "$1" "partition $2" "test_$1" "$run/data/test.jsonl" "$run/parsed_test/$1.jsonl"
    stage "score_$1" tool "annotate_test_$1" "${doppel[@]}" parser-metrics --predicted "$run/parsed_test/$1.jsonl" \
        --gold "$run/data/test.jsonl" --function "$MISSING" --out "$run/parser_metrics/$1.json"
    results+=" score_$1"
}

rounds() {
    local parser=none round name trees synthetic annotated="$run/data/private_annotated.jsonl" after=annotate_private
    for round in $(seq "$ROUNDS"); do
        name="iterative_$round" trees="$run/iterative_${round}_trees.jsonl" synthetic="$run/synthetic_iterative_$round.jsonl"
        [ "$round" -lt "$ROUNDS" ] || name=iterative synthetic="$run/synthetic_iterative.jsonl"
        if [ "$round" -gt 1 ]; then
            annotated="$run/data/private_annotated_$round.jsonl" after="annotate_private_$round"
            annotate "$parser" "parser_$parser" "private_$round" "$run/data/private.jsonl" "$annotated"
        fi
        fit_round "$round" parse_tree "$after" "$annotated"
        fit_round "$round" parse2utterance "$after" "$annotated"
        sample_round "$round" parse_tree "iterative_${round}_parse_tree" "$trees"
        sample_round "$round" parse2utterance "iterative_${round}_parse2utterance sample_iterative_${round}_trees" "$synthetic" "$trees"
        retrain "$name" "sample_iterative_${round}_utterances" "$synthetic"
        parser=$name
    done
    evaluate iterative "sample_iterative_${ROUNDS}_utterances" "$synthetic"
    results+=" evaluate_iterative"
}

{ # read to the end before it runs, so that an edit of this file does not reach a running pipeline
options "$@"
read_env "$present/pipeline.env"
adaptation_settings
export ANNOTATED="$run/data/private_annotated.jsonl" # data.yaml names it
high_resource=${PARSER:-}

stages() {
    local system
    results="${synthesised[*]/#/evaluate_}"
    partition
    fit_parser none partition parser_low "$run/data/public.jsonl"
    score none parser_none
    annotate none "partition parser_none" private "$run/data/private.jsonl" "$ANNOTATED"
    if [ -z "$high_resource" ]; then
        fit_parser full partition parser_full "$run/data/full.jsonl"
        PARSER="$run/parser_full/checkpoints/last.ckpt" evaluate_after=parser_full
    fi
    [ -z "$full" ] || score full "$evaluate_after"

    parser_settings "${synthesised[@]}"
    fit_after=annotate_private
    synthesise "${synthesised[@]}"
    for system in "${synthesised[@]}"; do
        retrain "$system" "$(last_of "$system")" "$(synthetic_of "$system")"
    done
    [ "$ROUNDS" -eq 1 ] || rounds
    every_time report tool "$results" "${doppel[@]}" report "$run"
}
pipeline
exit
}

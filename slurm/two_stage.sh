#!/usr/bin/env bash
# Private synthesis from data to report, stage after stage.
#
#   slurm/two_stage.sh --local CONFIG_DIR RUN_DIR
#
# CONFIG_DIR holds the experiment (configs/experiments/quickstart is the smallest), RUN_DIR receives everything:
#   one_stage/ parse_tree/ parse2utterance/ …   trained models, with checkpoints, configuration and W&B files
#   synthetic_one_stage.jsonl, trees.jsonl, synthetic.jsonl, …     samples
#   ledger.jsonl, report.json                   what was spent, and every metric
#   settings.env                                what the run was started with
# A finished stage is skipped when the command is run again; an interrupted one goes on where it stopped.
#
# Variables, which win over those of CONFIG_DIR/pipeline.env:
#   EPSILON      target ε in place of the configuration's; inf trains without privacy, on shuffled batches
#   SEED         seed of data order, dropout, sampling and evaluation; never of the privacy noise
#   SYSTEMS      of one_stage, two_stage, domain (1.5-stage), shared (two stages in one model), constrained (the models of
#                two_stage, which comes first, with trees sampled under configs/constrained.yaml) and names with an
#                overlay CONFIG_DIR/NAME.yaml: both stages train under it; default "one_stage two_stage"
#   EPOCHS       "ONE_STAGE PARSE_TREE PARSE2UTTERANCE" in place of the configuration's; EPOCHS_16 holds for ε = 16
#   FIT_ARGS     further arguments of every training; FIT_ARGS_inf holds for ε = inf
#   BASE_MODEL   folder or hub name in place of the configuration's
#   PARSER       checkpoint of a semantic parser that annotates for the evaluation
#   HISTOGRAM    exact draws the domains as they are in the data, as the paper does: NOT PRIVATE, and said to be so
#   NUM_SAMPLES, REFERENCE, KEEP_FUNCTION (turns of the reference), FEATURIZER, PRIVATE, LABELS (of domains)
set -euo pipefail

usage() {
    sed -n '2,24s/^# \{0,1\}//p' "$0"
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
[ -f "$experiment/pipeline.env" ] || fail "$experiment has no pipeline.env: copy one from configs/experiments/quickstart"
[ -z "${PARSER:-}" ] || PARSER=$(realpath "$PARSER")
umask 077
mkdir -p "$2"
run=$(cd "$2" && pwd)
cd "$root"

# Settings of the experiment; a variable that is set already wins.
while IFS='=' read -r key value; do
    case "$key" in '' | '#'*) continue ;; esac
    [ -n "${!key:-}" ] || export "$key=$(eval "echo \"$value\"")"
done < "$experiment/pipeline.env"
: "${NUM_SAMPLES:?set it in $experiment/pipeline.env}" "${REFERENCE:?set it in $experiment/pipeline.env}"
SYSTEMS=${SYSTEMS:-one_stage two_stage}
EPSILON=${EPSILON:-}
[[ "$EPSILON" =~ ^([0-9]*\.?[0-9]+|inf)?$ ]] || fail "EPSILON is $EPSILON: give a number above 0, or inf"
[[ "${SEED:-}" =~ ^[0-9]*$ ]] || fail "SEED is $SEED: give a whole number"
epochs_here=EPOCHS_${EPSILON/./_} fit_args_here=FIT_ARGS_${EPSILON/./_}
EPOCHS=${EPOCHS:-${!epochs_here:-}}
FIT_ARGS="${FIT_ARGS:-} ${!fit_args_here:-}"
for system in $SYSTEMS; do
    case "$system" in
        one_stage | two_stage) ;;
        constrained)
            before=" $SYSTEMS "
            [[ "${before%% constrained *} " == *" two_stage "* ]] || [ -f "$run/.done/parse2utterance" ] ||
                fail "constrained samples from the models of two_stage: name two_stage before it in SYSTEMS"
            ;;
        domain) [ -f "$experiment/domain.yaml" ] || fail "$experiment has no domain.yaml: leave domain out of SYSTEMS" ;;
        *) [ -f "$experiment/$system.yaml" ] || fail "$experiment has no $system.yaml: SYSTEMS names a system it does not describe" ;;
    esac
done

current_settings() {
    echo "EXPERIMENT=$(basename "$experiment")"
    for key in NUM_SAMPLES EPSILON SEED EPOCHS FIT_ARGS BASE_MODEL HISTOGRAM REFERENCE KEEP_FUNCTION; do
        echo "$key=$(sed 's/^ *//; s/ *$//' <<< "${!key:-}")"
    done
}

# A run folder holds one setting: another one would mix its models and samples.
settings="$run/settings.env"
keep() { # keep NAME VALUE
    local known
    grep -q "^$1=" "$settings" || return 0
    known=$(sed -n "s/^$1=//p" "$settings")
    [ "$known" = "$2" ] || fail "$run was started with $1=${known:-(none)}, now $1=${2:-(none)} is asked: restore it, or give another RUN_DIR"
}
if [ -f "$settings" ] || [ -d "$run/.done" ]; then
    # A run that is older than this file was started without any of the variables.
    [ -f "$settings" ] || printf '%s=\n' EPSILON SEED EPOCHS FIT_ARGS BASE_MODEL > "$settings"
    while IFS='=' read -r key value; do keep "$key" "$value"; done < <(current_settings)
fi
while IFS='=' read -r key value; do
    grep -q "^$key=" "$settings" 2>/dev/null || echo "$key=$value" >> "$settings"
done < <(current_settings)
commit=$(GIT_OPTIONAL_LOCKS=0 git describe --always --abbrev=12 --exclude '*' --dirty=+dirty 2>/dev/null || echo unknown)
grep -qx "COMMIT=$commit" "$settings" || echo "COMMIT=$commit" >> "$settings"

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

declare -A model_of=([one_stage]=utterance_lm [domain]=domain2utterance [parse_tree]=parse_tree_lm [parse2utterance]=parse2utterance [shared]=shared_lm)

# fit SYSTEM STAGE FOLDER: train a model of a system into RUN_DIR/FOLDER.
fit() {
    local system=$1 stage=$2 folder=$3 mine all privacy=() more=() epochs
    local configs=(--config configs/trainer.yaml --config "configs/${model_of[$stage]}.yaml"
        --config "$experiment/data.yaml" --config "$experiment/$stage.yaml")
    case "$system" in
        one_stage | domain | shared) privacy=(--config "$experiment/dp_$system.yaml") ;;
        *) privacy=(--config "$experiment/dp_two_stage.yaml") ;;
    esac
    case "$system" in one_stage | domain | shared | two_stage) ;; *) configs+=(--config "$experiment/$system.yaml") ;; esac
    [ "$EPSILON" != inf ] || { privacy=(); more+=(--data.init_args.sampling shuffle); }
    if [ ${#privacy[@]} -gt 0 ]; then
        more+=(--trainer.callbacks.init_args.scope "$system")
        [ -z "$EPSILON" ] || more+=(--trainer.callbacks.init_args.target_epsilon "$EPSILON")
    fi
    if [ -n "$EPOCHS" ]; then
        read -r -a epochs <<< "$EPOCHS"
        case "$stage" in
            one_stage | domain | shared) mine=${epochs[0]} all="[${epochs[0]}]" ;;
            parse_tree) mine=${epochs[1]} all="[${epochs[1]},${epochs[2]}]" ;;
            *) mine=${epochs[2]} all="[${epochs[1]},${epochs[2]}]" ;;
        esac
        more+=(--trainer.max_epochs "$mine")
        [ ${#privacy[@]} -eq 0 ] || more+=(--trainer.callbacks.init_args.epochs "$all")
    fi
    [ "$system" != domain ] || [ "${HISTOGRAM:-}" != exact ] || [ ${#privacy[@]} -eq 0 ] ||
        more+=(--trainer.callbacks.init_args.histogram_noise_multiplier null)
    [ -z "${SEED:-}" ] || more+=(--seed_everything "$SEED")
    [ -z "${BASE_MODEL:-}" ] || more+=(--model.init_args.base_model "$BASE_MODEL")
    if [ -f "$run/$folder/checkpoints/last.ckpt" ]; then
        echo "   resuming from $folder/checkpoints/last.ckpt"
        more+=(--ckpt_path "$run/$folder/checkpoints/last.ckpt")
    fi
    # shellcheck disable=SC2086
    doppel fit "${configs[@]}" "${privacy[@]}" --run_dir "$run/$folder" "${more[@]}" $FIT_ARGS
}

# sample SYSTEM STAGE FOLDER OUTPUT [PROMPTS]: sample from the model in RUN_DIR/FOLDER.
sample() {
    local system=$1 stage=$2 folder=$3 more=() prefix=""
    if [ "$system" = constrained ]; then
        prefix=constrained_
        [ "$stage" != parse_tree ] || more+=(--config configs/constrained.yaml)
    fi
    [ ! -f "$experiment/$system.sample.yaml" ] || more+=(--config "$experiment/$system.sample.yaml")
    [ -z "${BASE_MODEL:-}" ] || more+=(--model.init_args.base_model "$BASE_MODEL")
    [ $# -lt 5 ] || more+=(--data.init_args.prompts_path "$5")
    [ -z "${SEED:-}" ] || more+=(--seed_everything "$SEED" --model.init_args.sampling.seed "$SEED")
    doppel predict --config configs/trainer.yaml --config "configs/${model_of[$stage]}.yaml" \
        --config "$experiment/$stage.yaml" --config configs/sample.yaml --run_dir "$run/sample_$prefix$folder" \
        --ckpt_path "$run/$folder/checkpoints/last.ckpt" --data.init_args.num_samples "$NUM_SAMPLES" \
        --trainer.callbacks.init_args.output_path "$4" --trainer.callbacks.init_args.stage "$prefix$folder" "${more[@]}"
}

# histogram: prompts of the domain model, from a noised histogram of the private domains.
histogram() {
    local more=()
    [ -z "${LABELS:-}" ] || more+=(--labels "$LABELS")
    [ -z "${SEED:-}" ] || more+=(--seed "$SEED")
    [ "$EPSILON" != inf ] && [ "${HISTOGRAM:-}" != exact ] || more+=(--exact)
    doppel histogram "$run/domain" --out "$run/domains.jsonl" --num-samples "$NUM_SAMPLES" "${more[@]}"
}

# evaluate SYSTEM SYNTHETIC
evaluate() {
    local more=()
    [ -z "${PRIVATE:-}" ] || more+=(--private "$PRIVATE")
    [ -z "${SEED:-}" ] || more+=(--seed "$SEED")
    [ -z "${PARSER:-}" ] || more+=(--parser "$PARSER")
    [ -z "${KEEP_FUNCTION:-}" ] || more+=(--keep-function "$KEEP_FUNCTION")
    doppel evaluate --synthetic "$2" --reference "$REFERENCE" --out "$run/evaluation/$1.json" \
        --featurizer "${FEATURIZER:-models/base}" "${more[@]}"
}

if [ -n "${PARSER:-}" ]; then # metrics through another parser, or none, are computed anew
    parser="PARSER=$PARSER $(sha256sum "$PARSER" | cut -c1-16)"
    if ! grep -qxF "$parser" "$settings"; then
        rm -f "$run"/.done/evaluate_*
        sed -i '/^PARSER=/d' "$settings"
        echo "$parser" >> "$settings"
    fi
fi
{ # read to the end before it runs, so that an edit of this file does not reach a running pipeline
for system in $SYSTEMS; do
    case "$system" in
        one_stage)
            synthetic="$run/synthetic_one_stage.jsonl"
            run_stage one_stage fit one_stage one_stage one_stage
            run_stage sample_one_stage sample one_stage one_stage one_stage "$synthetic"
            ;;
        domain)
            synthetic="$run/synthetic_domain.jsonl"
            run_stage domain fit domain domain domain
            run_stage histogram histogram
            run_stage sample_domain sample domain domain domain "$synthetic" "$run/domains.jsonl"
            ;;
        constrained) # post-processing of two_stage: nothing more is spent
            synthetic="$run/synthetic_constrained.jsonl"
            run_stage sample_constrained_trees sample constrained parse_tree parse_tree "$run/constrained_trees.jsonl"
            run_stage sample_constrained_utterances sample constrained parse2utterance parse2utterance "$synthetic" "$run/constrained_trees.jsonl"
            ;;
        shared) # shared_tree.sample.yaml and shared_utterance.sample.yaml say what the model is asked for
            synthetic="$run/synthetic_shared.jsonl"
            run_stage shared fit shared shared shared
            run_stage sample_shared_trees sample shared_tree shared shared "$run/shared_trees.jsonl"
            run_stage sample_shared_utterances sample shared_utterance shared shared "$synthetic" "$run/shared_trees.jsonl"
            ;;
        *)
            prefix="${system}_" synthetic="$run/synthetic_$system.jsonl"
            [ "$system" != two_stage ] || prefix="" synthetic="$run/synthetic.jsonl"
            run_stage "${prefix}parse_tree" fit "$system" parse_tree "${prefix}parse_tree"
            run_stage "${prefix}parse2utterance" fit "$system" parse2utterance "${prefix}parse2utterance"
            run_stage "sample_${prefix}trees" sample "$system" parse_tree "${prefix}parse_tree" "$run/${prefix}trees.jsonl"
            run_stage "sample_${prefix}utterances" sample "$system" parse2utterance "${prefix}parse2utterance" \
                "$synthetic" "$run/${prefix}trees.jsonl"
            ;;
    esac
    run_stage "evaluate_$system" evaluate "$system" "$synthetic"
done
doppel report "$run"
exit
}

# shellcheck shell=bash
# From private turns to synthetic ones: the stages of slurm/two_stage.sh, which slurm/adaptation.sh has too.
# shellcheck source=slurm/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

fit_after=""      # stages that write what the trainings read
evaluate_after="" # stage that trains the parser of the evaluation
declare -A model_of=([one_stage]=utterance_lm [domain]=domain2utterance [parse_tree]=parse_tree_lm [parse2utterance]=parse2utterance [shared]=shared_lm)

# synthesis_settings SYSTEM…: check the settings and write them down, for a run folder holds one setting.
synthesis_settings() {
    needs NUM_SAMPLES REFERENCE
    EPSILON=${EPSILON:-}
    [[ "$EPSILON" =~ ^([0-9]*\.?[0-9]+|inf)?$ ]] || fail "EPSILON is $EPSILON: give a number above 0, or inf"
    [[ "${SEED:-}" =~ ^[0-9]*$ ]] || fail "SEED is $SEED: give a whole number"
    local epochs_here=EPOCHS_${EPSILON/./_} fit_args_here=FIT_ARGS_${EPSILON/./_} system earlier=" "
    EPOCHS=${EPOCHS:-${!epochs_here:-}}
    FIT_ARGS="${FIT_ARGS:-} ${!fit_args_here:-}"
    for system in "$@"; do
        case "$system" in
            one_stage | two_stage) ;;
            constrained)
                [[ "$earlier" == *" two_stage "* ]] || [ -f "$run/.done/parse2utterance" ] ||
                    fail "constrained samples from the models of two_stage: name two_stage before it in SYSTEMS"
                ;;
            domain) [ -f "$present/domain.yaml" ] || fail "$present has no domain.yaml: leave domain out of SYSTEMS" ;;
            *) [ -f "$present/$system.yaml" ] || fail "$present has no $system.yaml: SYSTEMS names a system it does not describe" ;;
        esac
        earlier+="$system "
    done
    keep_settings
}

current_settings() {
    local key
    echo "EXPERIMENT=$(basename "$experiment")"
    for key in NUM_SAMPLES EPSILON SEED EPOCHS FIT_ARGS BASE_MODEL HISTOGRAM REFERENCE KEEP_FUNCTION; do
        echo "$key=$(sed 's/^ *//; s/ *$//' <<< "${!key:-}")"
    done
}

# Another setting would mix its models and samples with those of the run folder.
keep_settings() {
    local file="$run/settings.env" known="" key value old version
    if [ -f "$file" ]; then
        known=$(cat "$file")
    elif [ -d "$run/.done" ]; then # a run that is older than this file was started without any of the variables
        known=$(printf '%s=\n' EPSILON SEED EPOCHS FIT_ARGS BASE_MODEL)
    fi
    while IFS='=' read -r key value; do
        if grep -q "^$key=" <<< "$known"; then
            old=$(sed -n "s/^$key=//p" <<< "$known")
            [ "$old" = "$value" ] || fail "$run was started with $key=${old:-(none)}, now $key=${value:-(none)} is asked: restore it, or give another RUN_DIR"
        else
            known+="${known:+$'\n'}$key=$value"
        fi
    done < <(current_settings)
    version="COMMIT=$(commit)"
    grep -qxF "$version" <<< "$known" || known+=$'\n'"$version"
    ! writes || echo "$known" > "$file"
}

# parser_settings SYSTEM…: metrics through another parser, or none, are computed anew. A parser that this run trains is
# known by its place.
parser_settings() {
    local file="$run/settings.env" line system
    if [ -z "${PARSER:-}" ] || [ "$mode" = check ]; then return; fi
    if [[ "$PARSER" = "$run"/* ]]; then
        ! grep -qsF "PARSER=$run/" "$file" || return 0
        line="PARSER=$PARSER (of this run)"
    else
        line="PARSER=$PARSER $(sha256sum "$PARSER" | cut -c1-16)"
        ! grep -qsxF "$line" "$file" || return 0
    fi
    if ! writes; then
        for system in "$@"; do repeated+=" evaluate_$system"; done
        return
    fi
    rm -f "$run"/.done/evaluate_*
    sed -i '/^PARSER=/d' "$file"
    echo "$line" >> "$file"
}

# fit SYSTEM STAGE FOLDER: train a model of a system into RUN_DIR/FOLDER.
fit() {
    local system=$1 stage=$2 folder=$3 mine all privacy=() more=() epochs overlay
    local configs=(--config "${code}configs/trainer.yaml" --config "${code}configs/${model_of[$stage]}.yaml"
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
    for overlay in ${OVERLAYS:-}; do privacy+=(--config "$code$overlay"); done # of the profile
    # shellcheck disable=SC2086
    stage "$folder" fit "$fit_after" "${doppel[@]}" fit "${configs[@]}" "${privacy[@]}" --run_dir "$run/$folder" "${more[@]}" $FIT_ARGS
}

# sample NAME "DEP …" SYSTEM STAGE FOLDER OUTPUT [PROMPTS]: sample from the model in RUN_DIR/FOLDER.
sample() {
    local name=$1 after=$2 system=$3 stage=$4 folder=$5 more=() prefix=""
    if [ "$system" = constrained ]; then
        prefix=constrained_
        [ "$stage" != parse_tree ] || more+=(--config "${code}configs/constrained.yaml")
    fi
    [ ! -f "$present/$system.sample.yaml" ] || more+=(--config "$experiment/$system.sample.yaml")
    [ -z "${BASE_MODEL:-}" ] || more+=(--model.init_args.base_model "$BASE_MODEL")
    [ $# -lt 7 ] || more+=(--data.init_args.prompts_path "$7")
    [ -z "${SEED:-}" ] || more+=(--seed_everything "$SEED" --model.init_args.sampling.seed "$SEED")
    stage "$name" predict "$after" "${doppel[@]}" predict --config "${code}configs/trainer.yaml" \
        --config "${code}configs/${model_of[$stage]}.yaml" --config "$experiment/$stage.yaml" \
        --config "${code}configs/sample.yaml" --run_dir "$run/sample_$prefix$folder" \
        --ckpt_path "$run/$folder/checkpoints/last.ckpt" --data.init_args.num_samples "$NUM_SAMPLES" \
        --trainer.callbacks.init_args.output_path "$6" --trainer.callbacks.init_args.stage "$prefix$folder" "${more[@]}"
}

# histogram: prompts of the domain model, from a noised histogram of the private domains.
histogram() {
    local more=()
    [ -z "${LABELS:-}" ] || more+=(--labels "$LABELS")
    [ -z "${SEED:-}" ] || more+=(--seed "$SEED")
    [ "$EPSILON" != inf ] && [ "${HISTOGRAM:-}" != exact ] || more+=(--exact)
    stage histogram tool domain \
        "${doppel[@]}" histogram "$run/domain" --out "$run/domains.jsonl" --num-samples "$NUM_SAMPLES" "${more[@]}"
}

# evaluate SYSTEM "DEP …" SYNTHETIC
evaluate() {
    local more=()
    [ -z "${PRIVATE:-}" ] || more+=(--private "$PRIVATE")
    [ -z "${SEED:-}" ] || more+=(--seed "$SEED")
    [ -z "${PARSER:-}" ] || more+=(--parser "$PARSER")
    [ -z "${KEEP_FUNCTION:-}" ] || more+=(--keep-function "$KEEP_FUNCTION")
    stage "evaluate_$1" metrics "$2 $evaluate_after" "${doppel[@]}" evaluate --synthetic "$3" --reference "$REFERENCE" \
        --out "$run/evaluation/$1.json" --featurizer "${FEATURIZER:-models/base}" "${more[@]}"
}

synthetic_of() { # synthetic_of SYSTEM: the file of its samples
    if [ "$1" = two_stage ]; then echo "$run/synthetic.jsonl"; else echo "$run/synthetic_$1.jsonl"; fi
}

last_of() { # last_of SYSTEM: the stage that writes them
    case "$1" in
        one_stage | domain) echo "sample_$1" ;;
        two_stage) echo sample_utterances ;;
        *) echo "sample_$1_utterances" ;;
    esac
}

# synthesise SYSTEM…: the stages of every system. Trainings do not wait for one another.
synthesise() {
    local marks=.done system synthetic prefix
    for system in "$@"; do
        synthetic=$(synthetic_of "$system")
        case "$system" in
            one_stage)
                fit one_stage one_stage one_stage
                sample sample_one_stage one_stage one_stage one_stage one_stage "$synthetic"
                ;;
            domain)
                fit domain domain domain
                histogram
                sample sample_domain "domain histogram" domain domain domain "$synthetic" "$run/domains.jsonl"
                ;;
            constrained) # post-processing of two_stage: nothing more is spent
                sample sample_constrained_trees parse_tree constrained parse_tree parse_tree "$run/constrained_trees.jsonl"
                sample sample_constrained_utterances "parse2utterance sample_constrained_trees" \
                    constrained parse2utterance parse2utterance "$synthetic" "$run/constrained_trees.jsonl"
                ;;
            shared) # shared_tree.sample.yaml and shared_utterance.sample.yaml say what the model is asked for
                fit shared shared shared
                sample sample_shared_trees shared shared_tree shared shared "$run/shared_trees.jsonl"
                sample sample_shared_utterances "shared sample_shared_trees" shared_utterance shared shared \
                    "$synthetic" "$run/shared_trees.jsonl"
                ;;
            *)
                prefix="${system}_"
                [ "$system" != two_stage ] || prefix=""
                fit "$system" parse_tree "${prefix}parse_tree"
                fit "$system" parse2utterance "${prefix}parse2utterance"
                sample "sample_${prefix}trees" "${prefix}parse_tree" "$system" parse_tree "${prefix}parse_tree" "$run/${prefix}trees.jsonl"
                sample "sample_${prefix}utterances" "${prefix}parse2utterance sample_${prefix}trees" \
                    "$system" parse2utterance "${prefix}parse2utterance" "$synthetic" "$run/${prefix}trees.jsonl"
                ;;
        esac
        evaluate "$system" "$(last_of "$system")" "$synthetic"
    done
}

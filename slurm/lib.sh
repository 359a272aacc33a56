# shellcheck shell=bash
# How a list of stages is run: sourced by two_stage.sh, adaptation.sh, grid.sh and, for the site's settings, by the jobs.
#
#   options "$@"                        --submit (default), --local, --dry-run or --check, CONFIG_DIR and RUN_DIR
#   stage NAME KIND "DEP …" COMMAND…    one stage, which the stages DEP come before
#   pipeline                            what the function `stages` of the script lists
# KIND: fit (NODES nodes, a task a GPU), predict (one node, a task a GPU), metrics (one GPU), tool (no GPU).

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # the code that this file belongs to
root=${DOPPEL_ROOT:-$tree}                            # where commands run: relative paths of data and models start here
mode=submit
marks=.done             # folder in RUN_DIR of what is done
declare -A job_of=()    # job id by stage, of stages that are not done
repeated=""             # stages that are done again, though they are marked as done; only --dry-run leaves the marks

fail() {
    echo "error: $1" >&2
    exit 2
}

usage() { # the head of the script
    sed -n '2,/^set -/{/^set -/d; s/^# \{0,1\}//p}' "$0"
}

# read_env FILE: export its KEY=VALUE lines; a variable that is set already wins.
read_env() {
    local key value
    while IFS='=' read -r key value; do
        case "$key" in '' | '#'*) continue ;; esac
        [ -n "${!key:-}" ] || export "$key=$(eval "echo \"$value\"")"
    done < "$1"
}

# site: settings of the cluster, then of the kind of node.
site() {
    local file=${CLUSTER_ENV:-$tree/slurm/cluster.env}
    [ ! -f "$file" ] || read_env "$file"
    PROFILE=${PROFILE:-generic}
    file="$tree/slurm/profiles/$PROFILE.env"
    # shellcheck disable=SC2035
    [ -f "$file" ] || fail "PROFILE is $PROFILE, and there is no $file: give one of $(cd "$tree/slurm/profiles" && echo *.env)"
    read_env "$file"
    NODES=${NODES:-1} GPUS_PER_NODE=${GPUS_PER_NODE:-0}
    TASKS_PER_NODE=${TASKS_PER_NODE:-$((GPUS_PER_NODE > 0 ? GPUS_PER_NODE : 1))}
    export PROFILE NODES
}

# mode_of "$1": take the mode, if it is one.
mode_of() {
    case "${1:-}" in
        --submit | --local | --dry-run | --check) mode=${1#--} ;;
        -h | --help) usage; exit 0 ;;
        -*) usage >&2; fail "there is no option $1: give --submit, --local, --dry-run or --check" ;;
        *) return 1 ;;
    esac
}

writes() { [ "$mode" = local ] || [ "$mode" = submit ]; } # the others leave no trace

# places CONFIG_DIR RUN_DIR: the experiment, the run folder, and from where jobs take code and configuration:
#   run, present (the experiment as it lies here now), experiment and code (where commands find both), doppel (the command)
places() {
    local given
    given=$(cd "$1" 2>/dev/null && pwd) || fail "no folder $1: give a folder of configs/experiments"
    [ -f "$given/pipeline.env" ] || fail "$given has no pipeline.env: copy one from configs/experiments/quickstart"
    [ "$mode" != submit ] || command -v sbatch > /dev/null ||
        fail "there is no sbatch here: submit where SLURM is, or give --local or --dry-run"
    umask 077
    run=$(realpath -ms "$2") present=$given experiment=$given code=""
    [ "$tree" = "$root" ] || code="$tree/"
    if [ "$mode" = submit ] || [ "$mode" = dry-run ]; then
        code="$run/code/" experiment="$run/code/experiment/$(basename "$given")"
        [ ! -d "$experiment" ] || present=$experiment # a run goes on with what it began with
        [ -d "$experiment" ] || [ ! -d "$run/code" ] ||
            fail "$run was begun with another experiment than $(basename "$given"): restore it, or give another RUN_DIR"
    fi
    if [ -n "${PARSER:-}" ]; then
        [ -f "$PARSER" ] || fail "PARSER is $PARSER, which is no file: give RUN/parser/checkpoints/last.ckpt, or leave it out"
        PARSER=$(realpath "$PARSER")
    fi
    site
    ! writes || mkdir -p "$run"
    if [ -x "$root/.venv/bin/python" ] && [ -z "${PYTHON:-}" ]; then PYTHON="$root/.venv/bin/python"; fi
    export WANDB_SILENT=${WANDB_SILENT:-true}
    # shellcheck disable=SC2034 # for the lists of stages
    doppel=("${PYTHON:-python}" "${code}cli.py")
    cd "$root" || exit
}

options() { # options [--submit | --local | --dry-run] CONFIG_DIR RUN_DIR
    if mode_of "$@"; then shift; fi
    [ $# -eq 2 ] || { usage >&2; fail "give CONFIG_DIR and RUN_DIR, after --submit (the default), --local or --dry-run"; }
    places "$@"
}

# needs VARIABLE…: settings without which there is no pipeline.
needs() {
    local key
    for key in "$@"; do
        [ -n "${!key:-}" ] || fail "$key is not set: set it in $present/pipeline.env"
    done
}

commit() { # what the code is
    if [ -f "${code:-$tree/}COMMIT" ]; then
        cat "${code:-$tree/}COMMIT"
    else
        (cd "$tree" && GIT_OPTIONAL_LOCKS=0 git describe --always --abbrev=12 --exclude '*' --dirty=+dirty 2>/dev/null) || echo unknown
    fi
}

# snapshot: copy code, experiment and the site's settings into the run folder, so that a job that waits or is requeued
# runs what was submitted. Weights (models/) and data stay where they are.
snapshot() {
    local folder="$run/code" file
    if [ -d "$folder" ]; then
        echo "── code: $folder is kept, for the run began with it; delete the folder to go on with the present code"
        return
    fi
    rm -rf "$folder.partial"
    mkdir -p "$folder.partial/experiment"
    (
        cd "$tree" || exit
        if [ -e .git ]; then
            git ls-files -co --exclude-standard -z -- . ':!models' ':!.venv'
        else
            find . \( -name .git -o -name .venv -o -name __pycache__ -o -path ./runs -o -path ./data -o -path ./models \) \
                -prune -o \( -type f -o -type l \) -print0
        fi | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
            tar --create --null --files-from=- --file=-
    ) | tar --extract --directory "$folder.partial"
    cp -r "$present" "$folder.partial/experiment/"
    file=${CLUSTER_ENV:-$tree/slurm/cluster.env}
    [ ! -f "$file" ] || cp "$file" "$folder.partial/slurm/cluster.env"
    commit > "$folder.partial/COMMIT"
    mv "$folder.partial" "$folder"
    present=$experiment
    echo "── code: copied to $folder, from where the jobs run it"
}

# quoted WORD…: words as a shell reads them.
quoted() {
    local word words=()
    for word in "$@"; do
        [[ "$word" =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
        words+=("$word")
    done
    echo "${words[*]}"
}

# resources KIND: fills `sbatch` with what a job of this kind asks for.
resources() {
    local kind=$1 partition=${PARTITION:-} gpus=$GPUS_PER_NODE walltime=${FIT_TIME:-} nodes=1 more=${SBATCH_ARGS:-}
    sbatch=(sbatch --parsable "--chdir=$root" "--export=ALL,DOPPEL_CODE=${code%/}")
    case "$kind" in
        fit) nodes=$NODES ;;
        predict) walltime=${PREDICT_TIME:-$walltime} ;;
        metrics | tool)
            walltime=${TOOL_TIME:-}
            if [ "$kind" = metrics ] && [ "$gpus" -gt 0 ]; then
                gpus=1
            else
                gpus=0 partition=${TOOL_PARTITION:-$partition}
            fi
            ;;
    esac
    sbatch+=("--nodes=$nodes")
    case "$kind" in
        fit | predict)
            sbatch+=("--ntasks-per-node=$TASKS_PER_NODE" "--cpus-per-task=${CPUS_PER_TASK:-1}")
            more="${NODE_SBATCH_ARGS:-} $more"
            ;;
        *) sbatch+=(--ntasks-per-node=1 "--cpus-per-task=${TOOL_CPUS:-1}") ;;
    esac
    [ "$gpus" -eq 0 ] || sbatch+=("--gres=gpu:$gpus")
    [ -z "$partition" ] || sbatch+=("--partition=$partition")
    [ -z "${ACCOUNT:-}" ] || sbatch+=("--account=$ACCOUNT")
    [ -z "${QOS:-}" ] || sbatch+=("--qos=$QOS")
    [ -z "$walltime" ] || sbatch+=("--time=$walltime")
    # shellcheck disable=SC2206
    sbatch+=($more)
}

# queued NAME: whether a job of an earlier submission is still in the queue; its id is then in `id`.
queued() {
    local file="$run/slurm/$1.job" answer
    [ -f "$file" ] && command -v squeue > /dev/null || return 1
    id=$(cat "$file")
    if ! answer=$(squeue --noheader --format=%i --jobs="$id" 2>&1); then
        [[ "$answer" == *"Invalid job id"* ]] || fail "squeue does not say whether job $id is in the queue: $answer"
        return 1
    fi
    [ -n "$answer" ]
}

# submit NAME SCRIPT ARGUMENT…: with the options in `sbatch`; the job's id is then in `id`.
submit() {
    local name=$1 script=$2
    shift 2
    id=$("${sbatch[@]}" "$script" "$@") || fail "sbatch refused $name; give the command again once this is mended: what is in the queue stays there"
    id=${id%%;*}
    echo "$id" > "$run/slurm/$name.job"
    echo "── $name: job $id"
}

is_done() { # is_done NAME
    [ -f "$run/.done/$1" ] || [ -f "$run/.adaptation/$1" ] || return 1
    [[ " $repeated " != *" $1 "* ]]
}

# stage NAME KIND "DEP …" COMMAND…: run it, submit it or say how it would be submitted, unless it is done.
stage() {
    dispatch "$run/$marks/$1" "$@"
}

# every_time NAME KIND "DEP …" COMMAND…: a stage that is never done.
every_time() {
    dispatch - "$@"
}

dispatch() { # dispatch MARK NAME KIND "DEP …" COMMAND…
    local mark=$1 name=$2 kind=$3 dep id after="" script=$3
    local -a sbatch before
    read -r -a before <<< "$4"
    shift 4
    if [ "$mode" = check ]; then # a command that its parser refuses is not submitted
        case "$kind" in
            fit | predict)
                is_done "$name" || queued "$name" || "$@" --print_config > /dev/null || fail "$name would fail as above; nothing was started"
                ;;
        esac
        return
    fi
    if [ "$mode" = local ]; then
        bash "$tree/slurm/run_stage.sh" "$kind" "$mark" "$@"
        return
    fi
    local lead="──" variable="JOB_${name//[^A-Za-z0-9]/_}"
    [ "$mode" != dry-run ] || lead="#"
    if [ "$mark" != - ] && is_done "$name"; then
        echo "$lead $name: done already, skipped"
        return
    fi
    if queued "$name"; then
        job_of[$name]=$id
        echo "$lead $name: job $id is in the queue already"
        return
    fi
    for dep in "${before[@]}"; do
        if [ -n "${job_of[$dep]:-}" ]; then after+=":${job_of[$dep]}"; else is_done "$dep" || fail "$name stands before $dep, which it needs"; fi
    done
    resources "$kind"
    sbatch+=("--job-name=$name" "--output=$run/slurm/%x-%j.out")
    [ -z "$after" ] || sbatch+=(--kill-on-invalid-dep=yes)
    [ "$kind" != metrics ] || script=tool
    script="${code}slurm/$script.sbatch"
    if [ "$mode" = dry-run ]; then
        job_of[$name]="\$$variable"
        printf "%s=\$(%s%s \\\\\n    %s \\\\\n    %s)\n" "$variable" "$(quoted "${sbatch[@]}")" \
            "${after:+ --dependency=afterok$after}" "$(quoted "$script" "$mark")" "$(quoted "$@")"
        return
    fi
    [ -z "$after" ] || sbatch+=("--dependency=afterok$after")
    submit "$name" "$script" "$mark" "$@"
    job_of[$name]=$id
}

# pipeline: what the function `stages` lists, before which --submit parses every configuration.
pipeline() {
    case "$mode" in
        dry-run) echo "# code, configuration and the site's settings are first copied to ${code%/}" ;;
        submit)
            snapshot
            mkdir -p "$run/slurm"
            if [ "${CHECK:-1}" != 0 ]; then
                mode=check
                stages
                mode=submit
            fi
            ;;
    esac
    stages
    [ "$mode" != submit ] || echo "── squeue --me shows the jobs; their output is in $run/slurm. Give the command again to go on after a failure."
}

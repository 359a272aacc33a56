#!/usr/bin/env bash
# Private synthesis from data to report, stage after stage.
#
#   slurm/two_stage.sh [--submit] CONFIG_DIR RUN_DIR    as SLURM jobs that wait for one another (slurm/README.md)
#   slurm/two_stage.sh --local CONFIG_DIR RUN_DIR       here, one after the other
#   slurm/two_stage.sh --dry-run CONFIG_DIR RUN_DIR     print what would be submitted, and write nothing
#   slurm/two_stage.sh --check CONFIG_DIR RUN_DIR       parse the configuration of every training and sampling
#
# CONFIG_DIR holds the experiment (configs/experiments/quickstart is the smallest), RUN_DIR receives everything:
#   one_stage/ parse_tree/ parse2utterance/ …   trained models, with checkpoints, configuration and W&B files
#   synthetic_one_stage.jsonl, trees.jsonl, synthetic.jsonl, …     samples
#   ledger.jsonl, report.json                   what was spent, and every metric
#   settings.env                                what the run was started with
#   code/, slurm/                               what jobs run, and their output
# A finished stage is skipped when the command is run again; an interrupted one goes on where it stopped.
#
# Variables, which win over those of slurm/cluster.env and CONFIG_DIR/pipeline.env:
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
#   PROFILE      of slurm/profiles: the kind of node; NODES of it for each training (default 1)
#   CHECK        0 submits without --check, which comes first otherwise
#   NUM_SAMPLES, REFERENCE, KEEP_FUNCTION (turns of the reference), FEATURIZER, PRIVATE, LABELS (of domains)
set -euo pipefail
# shellcheck source=slurm/synthesis.sh
source "$(dirname "${BASH_SOURCE[0]}")/synthesis.sh"

{ # read to the end before it runs, so that an edit of this file does not reach a running pipeline
options "$@"
read_env "$present/pipeline.env"
read -r -a systems <<< "${SYSTEMS:-one_stage two_stage}"
synthesis_settings "${systems[@]}"
parser_settings "${systems[@]}"

stages() {
    synthesise "${systems[@]}"
    every_time report tool "${systems[*]/#/evaluate_}" "${doppel[@]}" report "$run"
}
pipeline
exit
}

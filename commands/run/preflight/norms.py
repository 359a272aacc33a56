"""Which clipping norm to take: gradient norms of public units, before anything is spent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from commands.privacy.gradient_norms import build, choices, measure, micro_batches, quantiles, recommend
from commands.run.experiment.experiment import load, read_values
from commands.run.experiment.settings import Experiment
from commands.run.steps.recipes import steps_of
from commands.run_folder.private_files import of_experiment
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import ReferenceColumns
from doppel.errors import UserError

_NOT_PRIVATE = "NOT PRIVATE: these are norms of private units, without noise; neither they nor a C chosen by them"


def norms(
    experiment: Path,
    *,
    public: str | None = None,
    run_dir: Path | None = None,
    num_units: int = 1000,
    set: Annotated[list[str] | None, Experiment] = None,
    not_private: bool = False,
) -> None:
    """Recommend a clipping norm C from gradient norms of public units, before anything is spent.

    Prints, for each private training of an experiment, quantiles of the gradient norms of short, medium and long units,
    the share that a C would clip and how much of their gradients they would keep. Recommended is the least C at which
    each length keeps three quarters on average. A loss is a sum over tokens, so norms grow with length: with a small C
    long rows are clipped most, and samples get shorter than the data. Noise grows with C. Only public units are read
    (--public, or the experiment's reference), so nothing is spent; a file that the experiment protects is refused. For
    the weights that `epochs.public` leaves give --set model.init_weights=RUN/public.

    Example:
        python cli.py norms configs/experiments/own-data.yaml --public public.txt --set 'systems=[one_stage]'

    Args:
        experiment: File of configs/experiments, or experiment.yaml of a run.
        public: Public turns that are like the private ones: a file, or embedded:…; default: the experiment's reference.
        run_dir: Run of the experiment; its trained weights are taken in place of those that training starts from.
        num_units: Units to look at, the first ones of the file, at most.
        set: Any field of the experiment, as NAME=VALUE, as for `run`.
        not_private: Take any file, also one that the experiment protects. The figures then say that they are not
            private.

    Raises:
        UserError: The file is one that the experiment protects, or there is nothing to clip.
    """
    if num_units < 3:
        raise UserError(f"--num-units is {num_units}: give at least 3, better a thousand")
    given = load(experiment, {**read_values(set), "epochs.public": 0})  # of weights that there are
    trainings = [stage for stage in steps_of(given, Path("RUN")) if stage.config.get("privacy")]
    if not trainings:
        raise UserError(f"{experiment} trains nothing privately, so nothing is clipped: give one with a finite epsilon")
    path = public or given.reference
    if path is None:
        raise UserError(f"{experiment} names no reference: give a file of public requests as --public")
    if not not_private:
        columns = ReferenceColumns.from_config(given.data)
        name = "reference" if public is None else "--public"
        refuse_private([(name, path, columns)], of_experiment(given.as_dict()))
    for stage in trainings:
        config = stage.config
        if run_dir is not None:
            config["model"]["init_args"]["init_weights"] = str(run_dir / str(stage.folder))
        data, model = config["data"]["init_args"], build(config["model"])
        sizes, lengths = measure(model, micro_batches(model, data, path, num_units))
        where = f"the weights in {run_dir}" if run_dir else "the weights that training starts from"
        text = [f"{stage.name}: {len(sizes)} units of {path}, at {where}", "", quantiles(sizes, lengths)]
        now, advised = config["privacy"].get("max_grad_norm"), recommend(sizes, lengths)
        text += ["", choices(sizes, lengths, advised, now), ""]
        text += [
            f"{_NOT_PRIVATE} may be released" if not_private else f"recommended: privacy.max_grad_norm {advised:g}"
        ]
        sys.stdout.write("\n".join([*text, "", ""]))

"""Names of the options of a training, so that a typo is found before Lightning is imported, which takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console.errors import explain
from doppel.errors import UserError

_COMMON = (
    *("config", "seed_everything", "trainer", "model", "data", "run_dir", "privacy", "not_private", "save_every"),
    *("ckpt_path", "weights_only", "print_config", "help"),
)
#: Command → names of its options; what stands behind a dot is Lightning's to check, but for the two below.
OPTIONS = {
    "fit": _COMMON,
    "validate": (*_COMMON, "verbose"),
    "test": (*_COMMON, "verbose"),
    "predict": (*_COMMON, "return_predictions"),
}
#: What ``--trainer.`` goes on with.
TRAINER = (
    *("accelerator", "accumulate_grad_batches", "barebones", "benchmark", "callbacks", "check_val_every_n_epoch"),
    *("default_root_dir", "detect_anomaly", "deterministic", "devices", "enable_autolog_hparams"),
    *("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "fast_dev_run", "gradient_clip_algorithm"),
    *("gradient_clip_val", "inference_mode", "limit_predict_batches", "limit_test_batches", "limit_train_batches"),
    *("limit_val_batches", "log_every_n_steps", "logger", "max_epochs", "max_steps", "max_time", "min_epochs"),
    *("min_steps", "model_registry", "num_nodes", "num_sanity_val_steps", "overfit_batches", "plugins", "precision"),
    *("profiler", "reload_dataloaders_every_n_epochs", "strategy", "sync_batchnorm", "use_distributed_sampler"),
    "val_check_interval",
)
#: What ``--privacy.`` goes on with: the fields of ``doppel.privacy.spec.PrivacyArguments``.
PRIVACY = (
    *("target_epsilon", "delta", "epochs", "max_grad_norm", "accountant", "ledger_path", "scope", "stage"),
    *("log_private_diagnostics", "fp16_loss_scale", "seed", "histogram_noise_multiplier", "histogram_share"),
)
_BELOW = {"trainer": TRAINER, "privacy": PRIVACY}


def check_options(command: str, words: Sequence[str]) -> None:
    """Refuse an option that a command does not have.

    Raises:
        UserError: There is one; the message names the nearest that exists.
    """
    known = [*OPTIONS[command], *(f"{group}.{name}" for group, names in _BELOW.items() for name in names)]
    for word in words:
        key = word.partition("=")[0].removeprefix("--")
        top, _, rest = key.partition(".")
        below = rest.partition(".")[0].removesuffix("+")
        is_known = top in known and (top not in _BELOW or not below or below in (*_BELOW[top], "help"))
        if word.startswith("--") and not is_known:
            text = explain(f"Unrecognized arguments: --{key}", known, sys.argv[1:])
            raise UserError(f"{text}\n`cli.py {command} --help` lists the options")

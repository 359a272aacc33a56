"""Fetch a published data set (SMCalFlow 2.0, TreeDST)."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py download``."""
    parser.add_argument("dataset", help="name of the release in configs/datasets.yaml: smcalflow or treedst")
    parser.add_argument(
        "--directory",
        type=Path,
        help="folder to write to (default: data/DATASET)",
    )


def run(args: argparse.Namespace) -> None:
    """Fetch the files and say where they are."""
    from datamodules.download import download

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for path in download(args.dataset, args.directory or Path("data") / args.dataset):
        print(path)

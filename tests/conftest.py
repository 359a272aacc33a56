"""Fixtures shared by all rooms: a tiny model with a tiny tokenizer, and a small private corpus."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiny_model import write_corpus, write_model

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
_KEYS = tempfile.TemporaryDirectory(prefix="doppel-tests-")  # with notes of the ledgers: not those of the user
# A busy machine fails no test, and every run meets the same examples; HYPOTHESIS_PROFILE=search draws new ones.
settings.register_profile("doppel", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "doppel"))
os.environ["DOPPEL_KEY"] = str(Path(_KEYS.name) / "key")


def pytest_collection_finish() -> None:
    """What every test has imported lives to the end: the garbage collector need not walk over it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_other_run() -> None:
    """Each test begins on a machine that knows of no run on its data."""
    Path(_KEYS.name, "key.ledgers").unlink(missing_ok=True)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What Lightning and Doppel tell the user."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a two-layer GPT-2 with random weights and a byte-level BPE tokenizer of its own."""
    folder = tmp_path_factory.mktemp("tiny_model")
    write_model(folder)
    return str(folder)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Plain JSON lines with 60 turns in 20 dialogues."""
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    write_corpus(path)
    return str(path)


@pytest.fixture(scope="session")
def private_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str) -> Path:
    """Run folder of a tiny private training, for tests that read it; see `private_training.write_private_run`."""
    from tests.private_training import write_private_run

    run = tmp_path_factory.mktemp("private") / "run"
    write_private_run(run, tiny_model, corpus)
    return run


@pytest.fixture
def own_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key and the notes of the ledgers as they are, for a test with a copy of a run: other copies are not known."""
    key = tmp_path / "site" / "key"
    shutil.copytree(Path(os.environ["DOPPEL_KEY"]).parent, key.parent)
    monkeypatch.setenv("DOPPEL_KEY", str(key))


@pytest.fixture
def own_private_run(private_run: Path, tmp_path: Path, own_site: None) -> Path:
    """A copy of that run, for a test that writes into it."""
    return Path(shutil.copytree(private_run, tmp_path / "private_run"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the public data sets; the test is skipped where there is none."""
    folder = os.environ.get("DOPPEL_DATA")
    if not folder:
        pytest.skip("DOPPEL_DATA names no folder with the public data sets")
    return Path(folder)

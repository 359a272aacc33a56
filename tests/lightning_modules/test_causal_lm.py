"""Losses of the language models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from datamodules.batches.batch import IGNORE_INDEX, MicroBatch
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.reading.example import Example
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.errors import UserError
from lightning_modules.causal_lm import CausalLM, Parse2Utterance, ParseTreeLM, UtteranceLM

TURN = Example("book lunch with Ana", "(Yield (Today))", "u", label="Calendar")


def micro_batch(model: CausalLM, turns: list[Example]) -> MicroBatch:
    encoded = model.text_format.encode_all(turns)
    width = max(len(e.input_ids) for e in encoded)
    ids = torch.full((len(turns), width), model.text_format.pad_id)
    labels = torch.full_like(ids, IGNORE_INDEX)
    for row, example in enumerate(encoded):
        length = len(example.input_ids)
        ids[row, :length] = torch.tensor(example.input_ids)
        labels[row, example.num_prompt : length] = ids[row, example.num_prompt : length]
    return MicroBatch(ids, labels, len(turns))


def reference_loss(model: CausalLM, turn: Example) -> torch.Tensor:
    """NLL of one example alone, divided as the model says, by the definition."""
    example = model.text_format.encode(turn)
    ids = torch.tensor([example.input_ids])
    log_probs = F.log_softmax(model.model(input_ids=ids).logits[0], -1)
    positions = range(example.num_prompt, len(example.input_ids))
    return -sum(log_probs[i - 1, ids[0, i]] for i in positions) / (model.loss_divisor or len(positions))


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("divisor", [16.0, None])
@pytest.mark.parametrize("model_class", [UtteranceLM, ParseTreeLM, Parse2Utterance])
def test_losses_are_the_nll_of_the_target_alone(
    model_class: type[CausalLM], divisor: float | None, is_fused: bool, tiny_model: str
) -> None:
    model = model_class(base_model=tiny_model, loss_divisor=divisor).eval()
    if not is_fused:
        model.head_loss = None
    turns = [TURN, Example("yes", "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))", "v")]
    expected = torch.stack([reference_loss(model, t) for t in turns])
    torch.testing.assert_close(model.losses(micro_batch(model, turns)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("divisor", "share_of_short"), [(16.0, 1 / 2), (None, 8 / 11)])
def test_a_likelihood_of_rows_samples_short_and_long_texts_as_often_as_they_occur(
    divisor: float | None, share_of_short: float, tiny_model: str
) -> None:
    """Equally many texts of 3 and of 8 tokens; the mean over tokens weighs them by 1/3 and 1/8."""
    torch.manual_seed(0)
    model = UtteranceLM(base_model=tiny_model, loss_divisor=divisor, task_prefix=False)
    bos, eos = model.text_format.bos_id, model.text_format.eos_id
    texts = [[20, 21], list(range(40, 47))]
    ids = torch.full((2, 9), model.text_format.pad_id)
    labels = torch.full((2, 9), IGNORE_INDEX)
    for row, text in enumerate(texts):
        ids[row, : len(text) + 2] = torch.tensor([bos, *text, eos])
        labels[row, 1 : len(text) + 2] = ids[row, 1 : len(text) + 2]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=300)
    for _ in range(300):
        optimizer.zero_grad()
        model.losses(MicroBatch(ids, labels, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    prompts = [model.text_format.encode_prompt(None)] * 2000
    arguments = SamplingArguments(top_k=0, max_new_tokens=10, max_rows=500)
    drawn = [text for text, _ in sample_texts(model.model, model.text_format, prompts, arguments, stream=(1,))]
    shares = [drawn.count(model.text_format.decode(text)) / len(drawn) for text in texts]
    assert sum(shares) > 0.8  # it has learnt the two by heart
    assert shares[0] / sum(shares) == pytest.approx(share_of_short, abs=0.05)  # four standard deviations


def test_a_row_without_labels_has_zero_loss_and_zero_gradient(tiny_model: str) -> None:
    model = UtteranceLM(base_model=tiny_model)
    batch = micro_batch(model, [TURN])
    batch.labels.fill_(IGNORE_INDEX)
    losses = model.losses(batch)
    assert losses.tolist() == [0.0]
    losses.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_token_that_predicts_nothing_is_not_computed_and_changes_nothing(tiny_model: str) -> None:
    model = UtteranceLM(base_model=tiny_model).double()
    ids = torch.randint(5, 40, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    ids[1, 6:], labels[1, 6:] = model.text_format.pad_id, -100
    seen: list[torch.Size] = []
    hook = model.model.get_input_embeddings().register_forward_hook(lambda layer, given, out: seen.append(out.shape))
    found = model.losses(MicroBatch(ids, labels, num_units=3))
    hook.remove()
    assert seen == [(3, 8, model.model.config.hidden_size)]
    logits = model.model(input_ids=ids, use_cache=False).logits
    nll = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
    )
    expected = nll.view(3, 8).sum(1) / 16.0
    assert torch.allclose(found, expected, rtol=1e-12)
    own, theirs = (torch.autograd.grad(x.sum(), list(model.parameters())) for x in (found, expected))
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(own, theirs, strict=True))


def test_checkpointed_activations_give_the_same_gradients_and_run_each_block_twice(tiny_model: str) -> None:
    gradients = {}
    for checkpointed in (False, True):
        model = UtteranceLM(base_model=tiny_model, activation_checkpointing=checkpointed)
        runs: list[int] = []
        for number, block in enumerate(model.model.transformer.h):
            block.attn.register_forward_hook(lambda *args, runs=runs, number=number: runs.append(number))
        model.losses(micro_batch(model, [TURN, Example("yes", None, "v")])).sum().backward()
        assert sorted(runs) == ([0, 0, 1, 1] if checkpointed else [0, 1])
        gradients[checkpointed] = {name: p.grad for name, p in model.named_parameters()}
        with torch.no_grad():
            model.eval().losses(micro_batch(model, [TURN]))
        assert len(runs) == (6 if checkpointed else 4), "evaluation computes nothing twice"
    assert gradients[True].keys() == gradients[False].keys()
    for name, gradient in gradients[True].items():
        assert torch.equal(gradient, gradients[False][name]), name


def test_label_serves_as_prompt(tiny_model: str) -> None:
    text_format = Parse2Utterance(base_model=tiny_model, source="label").text_format
    example = text_format.encode(TURN)
    assert text_format.decode(example.input_ids[: example.num_prompt - 1]) == "utterance: Calendar"
    assert text_format.decode(example.input_ids[example.num_prompt :]) == TURN.utterance
    assert example.input_ids[: example.num_prompt] == text_format.encode_prompt("Calendar")


@pytest.mark.parametrize("text", ["Ünïcode — “quotes”", "two  spaces", ' (?= "a\\"b")', "ends with .", "’s"])
def test_decoding_inverts_encoding(text: str, tiny_model: str) -> None:
    text_format = UtteranceLM(base_model=tiny_model).text_format
    example = text_format.encode(Example(text, None, "u"))
    assert text_format.decode(example.input_ids[example.num_prompt :]) == text


def test_a_turn_without_the_needed_field_is_an_error_that_names_it(tiny_model: str) -> None:
    text_format = ParseTreeLM(base_model=tiny_model).text_format
    with pytest.raises(UserError, match="parse"):
        text_format.encode(Example("hello", None, "u"))


def test_no_example_is_longer_than_the_model_has_positions(tiny_model: str) -> None:
    assert UtteranceLM(base_model=tiny_model).text_format.max_length == 96
    assert UtteranceLM(base_model=tiny_model, max_length=512).text_format.max_length == 96
    assert UtteranceLM(base_model=tiny_model, max_length=64).text_format.max_length == 64


def test_a_base_with_many_positions_is_tried_with_a_row_of_the_default_length(tiny_model: str, tmp_path: Path) -> None:
    """What a private training tries before its first step, which positions alone would make 8,192 tokens long."""
    folder = tmp_path / "many-positions"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_positions": 8192}))
    model = UtteranceLM(base_model=str(folder), init="random")
    assert model.model.config.max_position_embeddings == 8192
    assert [batch.input_ids.shape for batch in model.probe()] == [(1, 8), (2, 16), (2, 64), (2, 512)]
    assert UtteranceLM(base_model=str(folder), init="random", max_length=None).probe()[3].input_ids.shape == (2, 8192)
    assert UtteranceLM(base_model=tiny_model, max_length=None).probe()[3].input_ids.shape == (2, 96)
    assert [batch.input_ids.shape[1] for batch in UtteranceLM(base_model=tiny_model, max_length=40).probe()] == [
        8,
        16,
        40,
    ]


def test_a_missing_base_model_is_a_one_line_error() -> None:
    with pytest.raises(UserError, match="no/such/folder") as error:
        UtteranceLM(base_model="no/such/folder")
    assert "\n" not in str(error.value)


def test_the_test_command_tells_the_loss_of_a_token(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    model = UtteranceLM(base_model=tiny_model)
    data = DialogueDataModule(train_path=corpus, unit="utterance", test_path=corpus, limit_val_turns=12)
    trainer = Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path, enable_progress_bar=False)
    (logged,) = trainer.test(model, data, verbose=False)
    assert logged["test/loss"] > 0


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_loss_asks_for_no_number_of_a_batch(family: str, tiny_model: str, tmp_path: Path) -> None:
    """A GPU would be waited for; and transformers would warn of padding by the ids of a private batch."""
    folder = Path(tiny_model)
    if family == "llama":
        folder = tmp_path / "llama"
        shutil.copytree(tiny_model, folder)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        vocabulary = len(AutoTokenizer.from_pretrained(tiny_model))
        config = LlamaConfig(vocab_size=vocabulary, bos_token_id=0, eos_token_id=1, pad_token_id=2, **sizes)
        LlamaForCausalLM(config).save_pretrained(folder)
    model = UtteranceLM(base_model=str(folder))
    ids = torch.full((3, 9), 2)
    asked = []

    class Asked(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func is torch.ops.aten._local_scalar_dense.default)
            return func(*args, **(kwargs or {}))

    with Asked():
        model.losses(MicroBatch(ids, ids, 3, num_labels=8)).sum().backward()
    assert len(asked) > 20 and not any(asked)

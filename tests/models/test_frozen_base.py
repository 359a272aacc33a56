"""The weights below adapters: held once in their own dtype, in no checkpoint, hashed once, and never another base."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import private_training
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from private_training import data_module, privacy
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from callbacks import differential_privacy
from callbacks.row_independence import check_row_independence
from datamodules.batches.batch import MicroBatch
from datamodules.prompt_data_module import PromptDataModule
from doppel.decoding.sampling import SamplingArguments
from doppel.errors import UserError
from doppel.models import memory
from doppel.models.adapters import LoraArguments
from doppel.privacy import checkpoint as checkpoints
from doppel.privacy.clipping import PerSampleClipper
from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.training.warm_start import WarmStart

pytestmark = pytest.mark.filterwarnings("ignore")

LORA = LoraArguments(rank=2)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(3, 200, (4, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def bases(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of one Llama in float32 and in bfloat16, and of another one."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **SIZES, **special)
    folders = {}
    for seed, (name, dtype) in enumerate([("other", torch.bfloat16), ("bf16", torch.bfloat16), ("f32", torch.float32)]):
        torch.manual_seed(min(seed, 1))
        folders[name] = str(tmp_path_factory.mktemp(name))
        AutoModelForCausalLM.from_config(config).bfloat16().to(dtype).save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of rows takes longer than these trainings."""
    monkeypatch.setattr(differential_privacy, "check_row_independence", lambda module: None)


def model_of(base: str, **kwargs: Any) -> UtteranceLM:
    """A model whose adapters are no longer at their start, where B = 0 hides A; the same for each base."""
    model = UtteranceLM(base_model=base, **({"lora": LORA} | kwargs))
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=draw) / 8)
    return model


def fit(folder: Path, model: UtteranceLM, corpus: str, *callbacks: Callback, **kwargs: Any) -> Trainer:
    """A private epoch of five steps, whose last checkpoint is where a run folder has it."""
    keeper = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_last=True, save_top_k=-1)
    given = {"max_epochs": 1, "enable_checkpointing": True} | kwargs
    own = [privacy(folder), keeper, *callbacks]
    return private_training.fit(folder, model, data_module(corpus), own, **given)


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def sample(model: UtteranceLM, path: Path | None) -> list[str]:
    predictor = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    batches: Any = predictor.predict(model, PromptDataModule(num_samples=4), ckpt_path=path and str(path))
    return [s.text for batch in batches for s in batch]


def clipped(model: UtteranceLM) -> list[Tensor]:
    """Losses, norms and clipped gradients of four rows."""
    clipper = PerSampleClipper(model, max_grad_norm=0.5)
    with clipper.capture(4):
        losses = model.losses(MicroBatch(IDS, IDS, num_units=4))
        losses.sum().backward()
    norms = clipper.accumulate()
    return [losses.detach(), norms, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_weights_of_bfloat16_give_a_float32_step_the_numbers_of_weights_loaded_in_float32(
    bases: dict[str, str],
) -> None:
    own, wide = model_of(bases["bf16"]), model_of(bases["f32"])
    assert own.base is not None and wide.base is not None
    assert own.base.dtype is torch.bfloat16 and wide.base.dtype is torch.float32
    pairs = list(zip(clipped(own), clipped(wide), strict=True))
    assert len(pairs) == 2 + 2 * 2 * 7 and all(torch.equal(a, b) for a, b in pairs)


def test_a_private_fit_holds_each_frozen_weight_once_hashes_it_twice_and_keeps_adapters(
    bases: dict[str, str], corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differential_privacy, "check_row_independence", check_row_independence)  # under bf16-true, too
    hashed, add = [], checkpoints._add
    monkeypatch.setattr(checkpoints, "_add", lambda d, n, v: hashed.append(v) or add(d, n, v))
    model = model_of(bases["f32"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = fit(tmp_path, model, corpus, precision="bf16-true")
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in frozen.values()} == {torch.bfloat16}
    assert {p.dtype for p in trained.values()} == {torch.float32}
    assert all(v["exp_avg"].dtype is torch.float32 for v in trainer.optimizers[0].state.values())
    assert all(torch.equal(p, before[name].bfloat16()) for name, p in frozen.items())
    assert not any(torch.equal(p, before[name]) for name, p in trained.items())
    sizes = [v.shape for v in hashed if isinstance(v, Tensor) and v.dtype is torch.bfloat16]
    assert len(sizes) == 2 * len(frozen), "at the start and at the end, whatever is saved between"
    saved = torch.load(last(tmp_path), weights_only=True)
    assert saved["state_dict"].keys() == trained.keys()
    assert saved["base"] == model.base.record() and saved["base"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_cast_of_a_frozen_weight_is_kept_for_the_backward_pass(dtype: Any, bases: dict[str, str]) -> None:
    model = model_of(bases["f32"], dtype=dtype)
    shapes = {tuple(p.shape) for p in model.parameters() if not p.requires_grad and p.dim() == 2}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    casts: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        is_weight = {tuple(x.shape), tuple(x.t().shape) if x.dim() == 2 else ()} & shapes
        if is_weight and x.untyped_storage().data_ptr() not in own:
            casts.append(x)
        return x

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        model.trunk(IDS)
    assert casts == []


def test_the_weights_are_a_memory_map_of_their_file(bases: dict[str, str]) -> None:
    model = model_of(bases["bf16"])
    assert f"{bases['bf16']}/model.safetensors" in Path("/proc/self/maps").read_text()
    del model


def test_a_checkpoint_is_resumed_sampled_from_and_started_from_with_its_own_base_alone(
    bases: dict[str, str], corpus: str, tmp_path: Path
) -> None:
    sampling = SamplingArguments(max_new_tokens=6, redraws=None)
    model = model_of(bases["bf16"], sampling=sampling)
    fit(tmp_path, model, corpus, max_steps=2)
    again = model_of(bases["bf16"], sampling=sampling)
    assert sample(again, last(tmp_path)) == sample(model, None)
    assert again.weights_digest() == model.weights_digest()
    warm = UtteranceLM(base_model=bases["bf16"], lora=LORA, init_weights=str(tmp_path))
    assert all(torch.equal(p, dict(model.named_parameters())[n]) for n, p in warm.named_parameters())
    assert fit(tmp_path, again, corpus, ckpt_path=str(last(tmp_path))).global_step == 5

    other: list[Any] = [
        lambda: sample(model_of(bases["other"]), last(tmp_path)),
        lambda: fit(tmp_path, model_of(bases["other"]), corpus, ckpt_path=str(last(tmp_path))),
        lambda: model_of(bases["other"], init_weights=str(tmp_path)),
    ]
    for take in other:
        with pytest.raises(UserError, match="LoRA weights of another base: they were trained on") as error:
            take()
        assert "\n" not in str(error.value) and bases["bf16"] in str(error.value)


@pytest.mark.parametrize(("own", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_base_is_held_as_it_was_in_training_on_another_device_too(
    own: Any, other: Any, bases: dict[str, str]
) -> None:
    model, into = model_of(bases["f32"], dtype=own), model_of(bases["f32"], dtype=other)
    saved: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(saved)
    into.on_load_checkpoint(saved)
    assert into.base is not None and into.base.dtype is getattr(torch, own)
    into.base.settle(torch.device("cpu"), "bf16-mixed" if own == "float32" else "32-true")
    assert into.base.digest == saved["base"]["digest"]


def test_weights_that_no_folder_holds_stay_in_the_checkpoint(
    bases: dict[str, str], corpus: str, tmp_path: Path
) -> None:
    whole = UtteranceLM(base_model=bases["f32"])
    data = data_module(corpus, is_public=True)
    private_training.fit(tmp_path / "whole", whole, data, [], max_epochs=1).save_checkpoint(last(tmp_path / "whole"))
    model = model_of(bases["f32"], init_weights=str(tmp_path / "whole"))
    fit(tmp_path, model, corpus, max_steps=2)
    found = UtteranceLM(base_model=bases["f32"], lora=LORA)  # as `predict` builds it
    WarmStart.read(str(last(tmp_path)), found.text_format).load_into(found.model, found.base)
    assert all(torch.equal(p, dict(model.named_parameters())[n]) for n, p in found.named_parameters())
    assert found.weights_digest() == model.weights_digest()


def test_a_checkpoint_of_before_says_so_in_one_line_and_is_taken(
    bases: dict[str, str], corpus: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(bases["f32"])
    fit(tmp_path, model, corpus, max_steps=2)
    saved = torch.load(last(tmp_path), weights_only=True)
    del saved["base"]
    saved["state_dict"] = model.state_dict()
    torch.save(saved, tmp_path / "old.ckpt")
    with caplog.at_level(logging.WARNING):
        old = model_of(bases["f32"], sampling=SamplingArguments(max_new_tokens=6, redraws=None))
        sample(old, tmp_path / "old.ckpt")
    (line,) = (record.getMessage() for record in caplog.records if "before" in record.getMessage())
    assert str(tmp_path / "old.ckpt") in line and "\n" not in line
    assert all(torch.equal(p, dict(model.named_parameters())[n]) for n, p in old.named_parameters())
    assert old.left_out() == frozenset(), "what goes on from it holds the base as well"


class Writes(Callback):
    """Writes what it has seen into a frozen weight, in the first step."""

    def __init__(self, is_seen: bool) -> None:
        self.is_seen = is_seen

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        weight = pl_module.model.model.layers[0].mlp.up_proj.base_layer.weight
        with torch.no_grad():
            (weight if self.is_seen else weight.data)[0, 0] += 1.0


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_change_of_a_frozen_weight_is_found_and_leaves_in_no_checkpoint(
    is_seen: bool, bases: dict[str, str], corpus: str, tmp_path: Path
) -> None:
    """A write that PyTorch counts at the next checkpoint, another one at the end."""
    with pytest.raises(UserError, match="changes the frozen parameter 'model.*up_proj.base_layer.weight'"):
        fit(tmp_path, model_of(bases["bf16"]), corpus, Writes(is_seen))
    kept = list((tmp_path / "checkpoints").glob("*.ckpt"))
    assert bool(kept) is not is_seen
    for path in kept:
        assert all("lora_" in name for name in torch.load(path, weights_only=True)["state_dict"])


def test_a_checkpoint_without_a_trained_weight_is_refused(bases: dict[str, str], tmp_path: Path) -> None:
    model = model_of(bases["bf16"])
    saved: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(saved)
    saved["state_dict"].pop(next(name for name in saved["state_dict"] if "lora_A" in name))
    with pytest.raises(UserError, match="1 weights are .*lora_A"):
        model.on_load_checkpoint(saved)


def test_a_base_for_which_there_is_no_memory_is_refused_before_it_is_loaded(
    bases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"takes 0\.0 GB in bfloat16, and 0\.0 GB of memory are free .* nothing was"):
        model_of(bases["bf16"])


def test_trained_weights_are_float32_alone(bases: dict[str, str]) -> None:
    with pytest.raises(UserError, match="dtype bfloat16 is for weights that are not trained"):
        UtteranceLM(base_model=bases["bf16"], dtype="bfloat16")
    model = UtteranceLM(base_model=bases["bf16"])
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.base is None
    assert math.isfinite(sum(float(p.sum()) for p in model.parameters())) and isinstance(model.model, nn.Module)

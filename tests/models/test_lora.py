"""Adapters on any causal language model: trained privately, stored, resumed, sampled from and merged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from callbacks.differential_privacy import DifferentialPrivacy
from callbacks.export import write_pretrained
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.prompt_data_module import PromptDataModule
from doppel.decoding.sampling import SamplingArguments
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments, add_adapters, merged_weights
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")

LORA = LoraArguments(rank=3, alpha=6.0)
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


@pytest.fixture(scope="module")
def bases(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of tiny base models: GPT-2 (Conv1D), Llama and Qwen2 (grouped heads, RMSNorm; Qwen2's head is tied)."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    configs: dict[str, PreTrainedConfig] = {
        "llama": LlamaConfig(vocab_size=len(tokenizer), **SMALL),
        # loaded beside it, the tokenizer has the <|endoftext|> of its family too, which needs a row
        "qwen": Qwen2Config(vocab_size=len(tokenizer) + 1, tie_word_embeddings=True, **SMALL),
    }
    folders = {"gpt2": tiny_model}
    for name, config in configs.items():
        folders[name] = str(tmp_path_factory.mktemp(name))
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


def lora_model(base: str, **kwargs: Any) -> UtteranceLM:
    """A model with adapters that are no longer at their start, where B = 0 hides A."""
    torch.manual_seed(1)
    model = UtteranceLM(base_model=base, **({"lora": LORA} | kwargs))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def fit(folder: Path, model: UtteranceLM, corpus: str, callbacks: list[Callback], **kwargs: Any) -> Trainer:
    privacy = DifferentialPrivacy(
        PrivacyArguments(
            target_epsilon=8.0,
            accountant="rdp",
            seed=5,
            stage="fit",
            ledger_path=str(folder / "ledger.jsonl"),
            max_grad_norm=0.5,
        )
    )
    ckpt_path = kwargs.pop("ckpt_path", None)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[*callbacks, privacy],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        **({"enable_checkpointing": False} | kwargs),
    )
    data = DialogueDataModule(train_path=corpus, unit="utterance", batch_size=12, sampling_seed=3)
    trainer.fit(model, data, ckpt_path=ckpt_path)
    return trainer


def trained(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


class _Gradients(Callback):
    """Names of the parameters that have ever held a gradient."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.names |= {name for name, p in pl_module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("base", ["gpt2", "llama", "qwen"])
def test_adapters_alone_are_trained_noised_and_hold_gradients(
    base: str, bases: dict[str, str], corpus: str, tmp_path: Path
) -> None:
    plain = UtteranceLM(base_model=bases[base])
    model = UtteranceLM(base_model=bases[base], lora=LORA)
    ids = torch.randint(3, 200, (2, 9))
    assert torch.equal(model.model(ids).logits, plain.model(ids).logits), "adapters start at zero"
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    recorder = _Gradients()
    trainer = fit(tmp_path, model, corpus, [recorder])
    (group,) = trainer.optimizers[0].param_groups
    adapters = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert {id(p) for p in group["params"]} == {id(p) for p in adapters.values()}
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (name in adapters)
        assert (name in recorder.names) == (name in adapters), name
        assert torch.equal(parameter, before[name]) == (name not in adapters), name
    blocks = [name for name in adapters if ".0." in name or ".1." in name]
    assert len(blocks) == len(adapters) == 2 * 2 * (4 if base == "gpt2" else 7)


@pytest.mark.parametrize("base", ["gpt2", "llama", "qwen"])
@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_clipped_sums_are_those_of_a_loop_over_units(
    base: str, rows_per_unit: int, bases: dict[str, str], corpus: str
) -> None:
    model = lora_model(bases[base]).double()
    data = DialogueDataModule(
        train_path=corpus, unit="dialogue", batch_size=6, max_turns_per_unit=rows_per_unit, sampling_seed=3
    )
    data.text_format = model.text_format
    data.setup("fit")
    batch = next(b for b in data.train_dataloader() if b.num_units > 3)
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms, gradients = [], []
    for mb in batch.micro_batches:
        for unit in range(mb.num_units):
            loss = model.losses(mb).view(mb.num_units, rows_per_unit)[unit].sum()
            grads = torch.autograd.grad(loss, parameters)
            gradients.append(torch.cat([g.flatten() for g in grads]))
            norms.append(gradients[-1].norm())
    bound = float(torch.stack(norms).median())  # clips about half of the units
    expected = sum(g * min(1.0, bound / float(n)) for g, n in zip(gradients, norms, strict=True))

    clipper = PerSampleClipper(model, max_grad_norm=bound)
    found = []
    for mb in batch.micro_batches:
        with clipper.capture(mb.num_units, rows_per_unit=mb.rows_per_unit):
            model.losses(mb).sum().backward()
        found.append(clipper.accumulate())
    torch.testing.assert_close(torch.cat(found).double(), torch.stack(norms), rtol=1e-9, atol=0)
    total = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    assert (total - expected).norm() < 1e-12 * total.norm()


def test_interrupted_and_resumed_equals_uninterrupted(bases: dict[str, str], corpus: str, tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            if trainer.global_step == 3:
                raise KeyError("crash")

    def run(folder: Path, callbacks: list[Callback], **kwargs: Any) -> UtteranceLM:
        torch.manual_seed(7)  # the adapters' start
        model = UtteranceLM(base_model=bases["qwen"], lora=LORA)
        save = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=3, save_top_k=-1)
        fit(folder, model, corpus, [*callbacks, save], enable_checkpointing=True, **kwargs)
        return model

    whole = run(tmp_path / "whole", [])
    broken = tmp_path / "broken"
    with pytest.raises(KeyError, match="crash"):
        run(broken, [Stop()])
    resumed = run(broken, [], ckpt_path=str(broken / "step=3.ckpt"))
    assert torch.equal(trained(resumed), trained(whole))


def test_a_checkpoint_and_the_exported_folder_are_the_model(bases: dict[str, str], corpus: str, tmp_path: Path) -> None:
    sampling = SamplingArguments(max_new_tokens=8, redraws=None)
    for name in ("gpt2", "qwen"):  # Conv1D and Linear, both under a tied head
        base, folder = bases[name], tmp_path / name
        model = lora_model(base, sampling=sampling)
        trainer = fit(folder, model, corpus, [], enable_checkpointing=True)
        trainer.save_checkpoint(folder / "last.ckpt")
        write_pretrained(folder / "model", model.model, model.text_format, torch.float32, card={})

        ids = torch.randint(3, 200, (2, 9))
        with torch.no_grad():
            logits = model.model.eval()(ids).logits
            exported = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
            assert not any("lora" in key for key in exported.state_dict())
            torch.testing.assert_close(exported(ids).logits, logits, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(AutoModelForCausalLM.from_pretrained(base).eval()(ids).logits, logits, atol=1e-3)

        def sample(model: UtteranceLM, ckpt_path: Path | None) -> list[str]:
            predictor = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
            torch.manual_seed(0)
            data = PromptDataModule(num_samples=6)
            batches: Any = predictor.predict(model, data, ckpt_path=ckpt_path and str(ckpt_path))
            return [s.text for batch in batches for s in batch]

        fresh = UtteranceLM(base_model=base, lora=LORA, sampling=sampling)
        assert sample(fresh, folder / "last.ckpt") == sample(model, None)
        assert torch.equal(trained(fresh), trained(model))


@pytest.mark.parametrize(
    ("trained_with", "loaded_into"), [(LORA, None), (None, LORA), (LORA, LoraArguments(rank=3, alpha=12.0))]
)
def test_weights_of_other_adapters_are_refused(
    trained_with: LoraArguments | None, loaded_into: LoraArguments | None, tiny_model: str
) -> None:
    checkpoint: dict[str, Any] = {}
    UtteranceLM(base_model=tiny_model, lora=trained_with).on_save_checkpoint(checkpoint)
    UtteranceLM(base_model=tiny_model, lora=trained_with).on_load_checkpoint(checkpoint)
    with pytest.raises(UserError, match="lora: ") as error:
        UtteranceLM(base_model=tiny_model, lora=loaded_into).on_load_checkpoint(checkpoint)
    assert "\n" not in str(error.value)


def test_a_model_without_adapters_is_its_own_merger(tiny_model: str) -> None:
    model = GPT2LMHeadModel.from_pretrained(tiny_model)
    merged = merged_weights(model)
    assert merged.keys() == model.state_dict().keys()
    assert all(torch.equal(merged[key], value) for key, value in model.state_dict().items())


def test_chosen_layers_alone_are_adapted(bases: dict[str, str]) -> None:
    arguments = LoraArguments(rank=2, target_modules=["q_proj", "self_attn.v_proj"])
    model = UtteranceLM(base_model=bases["llama"], lora=arguments)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(names) == 2 * 2 * 2
    assert all(".q_proj." in name or ".v_proj." in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            LoraArguments(target_modules=["query"]),
            "GPT2LMHeadModel.* c_attn, c_fc, c_proj",
        ),
        (LoraArguments(target_modules=["lm_head"]), "lora.target_modules"),
        (LoraArguments(target_modules=["c_attn", "c_proy"]), "'c_proy' names no .* c_attn, c_fc, c_proj"),
        (LoraArguments(target_modules=[]), "an empty list names no linear layer"),
        (LoraArguments(rank=0), "rank 0"),
        (LoraArguments(alpha=math.nan), "alpha nan"),
        (LoraArguments(dropout=1.0), "dropout 1.0"),
    ],
)
def test_adapters_that_cannot_be(arguments: LoraArguments, says: str, tiny_model: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        UtteranceLM(base_model=tiny_model, lora=arguments)
    assert "\n" not in str(error.value)


def test_experts_without_adapters_are_named_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {**SMALL, "num_local_experts": 4, "vocab_size": 64}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **sizes))
    with caplog.at_level("WARNING"):
        add_adapters(model, LORA)
    (line,) = caplog.messages
    assert "the experts of MixtralForCausalLM, such as model.layers.0.mlp.experts, get no LoRA" in line
    assert not any(p.requires_grad for name, p in model.named_parameters() if ".experts." in name)

"""LoRA weights leave as peft and vLLM read them, and come back as a base, with their card and that of their base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, get_peft_model
from private_training import data_module, fit, privacy
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import cli
from commands.lightning.given_models import check_model
from commands.lightning.trained_model import trained_model
from commands.run_folder.stage_config import StageConfig
from doppel.console.plan import num_parameters_of
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from doppel.models.load import check_loads, load_config, load_model, load_tokenizer
from doppel.privacy.card import origins_of
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
LORA = LoraArguments(rank=2)
IDS = torch.randint(3, 200, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def llama(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny Llama in bfloat16."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **sizes, **special)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def train(
    run: Path, base: str, corpus: str, is_private: bool = True, given: dict[str, Any] | None = None, **lora: Any
) -> Path:
    """RUN/fit of two steps of LoRA, as `fit` leaves it."""
    arguments = {"rank": 3, "alpha": 6.0} | lora
    model = UtteranceLM(base_model=base, lora=LoraArguments(**arguments), **(given or {}))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # no longer at the start, where B = 0 hides A
            torch.nn.init.normal_(parameter, std=0.1)
    stage = run / "fit"
    callbacks = [privacy(run, seed=None)] if is_private else []
    trainer = fit(stage, model, data_module(corpus, sampling_seed=None), callbacks, max_steps=2)
    (stage / "checkpoints").mkdir(parents=True)
    trainer.save_checkpoint(stage / "checkpoints" / "last.ckpt")
    init = {"base_model": base, "linearisation": "spaced", "task_prefix": True, "lora": arguments}
    config = {
        "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": init},
        "data": {"init_args": {"train_path": corpus}},
        "privacy": {"target_epsilon": 8.0, "ledger_path": str(run / "ledger.jsonl")},
    }
    (stage / "config.yaml").write_text(yaml.safe_dump(config))
    return stage


@pytest.fixture(scope="module")
def stages(
    tiny_model: str, llama: str, corpus: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, Path]]:
    """Bases and trainings on top of them; one base lies in a folder whose name is nobody's business."""
    runs, base = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("clients") / "llama"
    shutil.copytree(llama, base)
    chosen = {"target_modules": ["q_proj", "v_proj"]}
    return {
        "gpt2": (tiny_model, train(runs / "gpt2", tiny_model, corpus)),
        "llama": (str(base), train(runs / "llama", str(base), corpus, **chosen)),
    }


def export(stage: Path, out: Path, *words: str) -> Path:
    assert cli.main(["export", str(stage), str(out), *words]) == 0
    return out


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.float().eval()(IDS).logits
    return found


def trained(stage: Path) -> torch.Tensor:
    return logits(trained_model(stage / "checkpoints" / "last.ckpt", StageConfig.read(stage)).model)


def plain(folder: Path | str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_peft_and_plain_transformers_load_what_a_training_with_lora_exports(
    kind: str, stages: dict[str, tuple[str, Path]], tmp_path: Path
) -> None:
    base, stage = stages[kind]
    expected = trained(stage)
    adapters, merged = export(stage, tmp_path / "adapters"), export(stage, tmp_path / "merged", "--merge")
    assert not torch.allclose(logits(plain(base)), expected, atol=1e-3)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(plain(base), adapters)), expected, rtol=0, atol=1e-5)
    dtype = AutoModelForCausalLM.from_pretrained(base).dtype
    written = AutoModelForCausalLM.from_pretrained(merged)
    assert {value.dtype for value in load_file(merged / "model.safetensors").values()} == {dtype} == {written.dtype}
    by_peft = PeftModel.from_pretrained(plain(base), adapters).merge_and_unload().to(dtype)
    torch.testing.assert_close(logits(written), logits(by_peft), rtol=0, atol=1e-5)
    if dtype == torch.float32:
        torch.testing.assert_close(logits(written), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        logits(plain(export(stage, tmp_path / "exact", "--merge", "--dtype=float32"))), expected, rtol=0, atol=1e-5
    )


def test_the_folder_holds_what_vllm_asks_and_says_its_base_to_anybody(
    stages: dict[str, tuple[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, stage = stages["llama"]
    out = export(stage, tmp_path / "out")
    assert {path.name for path in out.iterdir()} <= {
        *("adapter_config.json", "adapter_model.safetensors", "generation_config.json", "privacy_card.json"),
        *("README.md", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    }
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 3, 6, "none")
    assert config["target_modules"] == ["q_proj", "v_proj"] and config["modules_to_save"] is None
    weights = load_file(out / "adapter_model.safetensors")
    names = {f"model.layers.{n}.self_attn.{p}_proj.lora_{ab}.weight" for n in (0, 1) for p in "qv" for ab in "AB"}
    assert set(weights) == {f"base_model.model.{name}" for name in names}
    assert {value.dtype for value in weights.values()} == {torch.float32}
    card = json.loads((out / "privacy_card.json").read_text())
    assert card["private"] and card["base"]["name"] == config["base_model_name_or_path"] == "llama"
    (digest,) = card["base"]["sha256"].values()
    readme = (out / "README.md").read_text()
    assert digest in readme and not [text for text in (readme, json.dumps(config)) if str(Path(base).parent) in text]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path / "llama")  # as the lines name it
    exec(readme.split("```")[1].removeprefix("python\n"), lines := {})
    torch.testing.assert_close(logits(lines["model"]), trained(stage), rtol=0, atol=1e-5)
    assert lines["settings"].do_sample and lines["written"].shape[0] == 5


def by_peft(base: str, folder: Path, **config: Any) -> torch.Tensor:
    """Write LoRA weights of somebody else's, by peft alone, into a folder; the logits of the adapted model."""
    adapted = get_peft_model(plain(base), LoraConfig(r=2, lora_alpha=5, task_type="CAUSAL_LM", **config))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)
    return logits(adapted)


@pytest.mark.parametrize("config", [{}, {"use_rslora": True}, {"modules_to_save": ["norm"]}])
def test_lora_weights_of_somebody_else_are_a_base(llama: str, tmp_path: Path, config: dict[str, Any]) -> None:
    expected = by_peft(llama, tmp_path / "theirs", target_modules=["q_proj", "down_proj"], **config)
    model = UtteranceLM(base_model=str(tmp_path / "theirs"))
    torch.testing.assert_close(logits(model.model), expected, rtol=0, atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters()), "all weights are trained, as of any base"
    assert model.text_format.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(llama).get_vocab(), "of its base"
    assert model.origins == [], "neither has a card"
    architecture = UtteranceLM(base_model=str(tmp_path / "theirs"), init="random")
    assert not torch.allclose(logits(architecture.model), expected, atol=1e-3)


def test_a_run_goes_on_from_an_exported_folder_and_is_released_whole(
    stages: dict[str, tuple[str, Path]], corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model, first = stages["gpt2"]
    base = export(first, tmp_path / "adapters")
    config = json.loads((base / "adapter_config.json").read_text())
    (base / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": tiny_model}))
    torch.testing.assert_close(logits(UtteranceLM(base_model=str(base)).model), trained(first), rtol=0, atol=1e-5)
    second = train(tmp_path / "second", str(base), corpus)
    assert cli.main(["export", str(second), str(tmp_path / "refused")]) == 2
    assert "add --merge" in capsys.readouterr().err and not (tmp_path / "refused").exists()
    merged = export(second, tmp_path / "merged", "--merge")
    torch.testing.assert_close(logits(plain(merged)), trained(second), rtol=0, atol=1e-5)
    origins = json.loads((merged / "privacy_card.json").read_text())["origins"]
    assert [origin["path"] for origin in origins] == [base.name] and origins[0]["private"]["scope"] == "default"
    caveats = " ".join(json.loads((merged / "privacy_card.json").read_text())["caveats"])
    assert "charged to another ledger" in caveats


@pytest.mark.parametrize("init", ["random", "init_weights"])
def test_adapters_of_a_base_that_no_folder_holds_are_released_whole(
    init: str, tiny_model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"init": "random"}
    if init == "init_weights":
        start = UtteranceLM(base_model=tiny_model, init="random")
        trainer = fit(tmp_path / "start", start, data_module(corpus, is_public=True), [], max_steps=1)
        trainer.save_checkpoint(tmp_path / "start.ckpt")
        given = {"init_weights": str(tmp_path / "start.ckpt")}
    stage = train(tmp_path / "run", tiny_model, corpus, is_private=False, given=given)
    assert cli.main(["export", str(stage), str(tmp_path / "refused")]) == 2
    assert "is not what" in capsys.readouterr().err and not (tmp_path / "refused").exists()
    merged = export(stage, tmp_path / "merged", "--merge")
    torch.testing.assert_close(logits(plain(merged)), trained(stage), rtol=0, atol=1e-5)


def test_merge_is_refused_where_nothing_is_merged(
    own_private_run: Path, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init = {"base_model": tiny_model, "linearisation": "spaced", "task_prefix": True}
    model = {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": init}
    (own_private_run / "fit" / "config.yaml").write_text(yaml.safe_dump({"model": model, "data": {}}))
    assert cli.main(["export", str(own_private_run / "fit"), str(tmp_path / "out"), "--merge"]) == 2
    assert "leave --merge out" in capsys.readouterr().err and not (tmp_path / "out").exists()


def changed_config(**values: Any) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def changed_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "adapter_model.safetensors")
        change(weights)
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})

    return damage


A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no base": (changed_config(base_model_name_or_path=None), "names no base"),
    "itself": (lambda folder: changed_config(base_model_name_or_path=str(folder))(folder), "no whole model is below"),
    "no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), "names no base"),
    "base elsewhere": (changed_config(base_model_name_or_path="./gone"), "for the base that its .* './gone'"),
    "another kind": (changed_config(peft_type="IA3"), "kind IA3"),
    "one too few": (changed_weights(lambda w: w.pop(A)), "1 of its LoRA weights.*layers.0.self_attn.q_proj"),
    "one too many": (changed_weights(lambda w: w.update({A.replace("q_p", "k_p"): w[A] + 1})), "1 of its LoRA.*k_proj"),
    "another shape": (changed_weights(lambda w: w.update({A: w[A][:, 1:].clone()})), "size mismatch"),
    "not a number": (changed_weights(lambda w: w[A].fill_(torch.nan)), "NaN"),
    "torn": (lambda folder: (folder / "adapter_model.safetensors").write_text("version https://git-lfs"), "Git LFS"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors"),
}


@pytest.fixture(scope="module")
def theirs(llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora") / "theirs"
    by_peft(llama, folder, target_modules=["q_proj"])
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_lora_weights_that_are_no_base_are_refused_in_one_line(damage: str, theirs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(theirs, folder)
    change, said = DAMAGES[damage]
    change(folder)
    with pytest.raises(UserError, match=said) as caught:
        UtteranceLM(base_model=str(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("ask", [check_loads, load_model, lambda folder: UtteranceLM(base_model=folder, lora=LORA)])
def test_a_whole_model_beside_lora_weights_is_refused(
    ask: Callable[[str], object], theirs: Path, llama: str, tmp_path: Path
) -> None:
    """The library would put them into the model, and LoRA would be trained on top of them."""
    shutil.copytree(llama, tmp_path / "both")
    shutil.copytree(theirs, tmp_path / "both", dirs_exist_ok=True)
    with pytest.raises(UserError, match="both.* holds a whole model and LoRA weights, adapter_config.json"):
        ask(str(tmp_path / "both"))


def test_a_base_that_is_not_there_is_to_be_named_where_the_weights_name_it(theirs: Path, tmp_path: Path) -> None:
    shutil.copytree(theirs, tmp_path / "theirs")
    changed_config(base_model_name_or_path="gone")(tmp_path / "theirs")
    with pytest.raises(UserError, match="theirs/adapter_config.json as base_model_name_or_path"):
        check_model("model.base_model", str(tmp_path / "theirs"))


@torch.no_grad()
def test_lora_weights_on_others_need_a_whole_model_below_them(theirs: Path, llama: str, tmp_path: Path) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for folder, base in ((upper, lower), (lower, upper)):
        shutil.copytree(theirs, folder)
        changed_config(base_model_name_or_path=str(base))(folder)
    for ask in (load_tokenizer, load_config, load_model, check_loads, num_parameters_of, origins_of):
        with pytest.raises(UserError, match=f"no whole model is below them: {upper} is for {lower} is for {upper}"):
            ask(upper)  # type: ignore[operator]
    changed_config(base_model_name_or_path=llama)(lower)
    whole, once, twice = (load_model(name).model.layers[0].self_attn.q_proj.weight for name in (llama, lower, upper))
    torch.testing.assert_close(twice - once, once - whole)


def test_lora_weights_of_the_hub_are_a_base_as_it_has_given_them(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit, of_hub = "0" * 40, tmp_path / "hub" / "models--somebody--theirs"
    shutil.copytree(theirs, of_hub / "snapshots" / commit)
    (of_hub / "refs").mkdir()
    (of_hub / "refs" / "main").write_text(commit)
    check_model("model.base_model", "somebody/theirs")  # as the gate does
    check_loads("somebody/theirs")
    model, expected = UtteranceLM(base_model="somebody/theirs", lora=LORA), UtteranceLM(base_model=str(theirs))
    torch.testing.assert_close(logits(model.model), logits(expected.model), rtol=1e-4, atol=1e-4)
    (of_hub / "snapshots" / commit / "adapter_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no adapter_model\.safetensors"):
        load_model("somebody/theirs")
    with pytest.raises(UserError, match="'somebody/else', no local folder, from the Hugging Face hub"):
        load_model("somebody/else")
    with pytest.raises(UserError, match="somebody/else, which is no folder, and the hub does not give it"):
        check_model("model.base_model", "somebody/else")


def test_weights_of_a_head_that_is_the_embedding_are_refused(tiny_model: str, tmp_path: Path) -> None:
    by_peft(tiny_model, tmp_path / "theirs", target_modules=["lm_head"])
    with pytest.raises(UserError, match="output head"):
        UtteranceLM(base_model=str(tmp_path / "theirs"))


def test_a_run_asks_for_the_base_of_lora_weights_before_its_first_step(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(theirs, tmp_path / "theirs")
    changed_config(base_model_name_or_path="./gone")(tmp_path / "theirs")
    words = ["run", "configs/experiments/quickstart.yaml", str(tmp_path / "run"), "--check", "--set"]
    assert cli.main([*words, f"model.base_model={tmp_path / 'theirs'}"]) == 2
    said = capsys.readouterr().err
    assert "./gone" in said and "LoRA" in said and "Traceback" not in said

"""How an exported model is asked for text: its prompt, its decoding settings, and the lines of Python that do it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.privacy.histogram import read_labels
from commands.run_folder.manifest import Manifest
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import SHARES
from datamodules.reading.columns import Columns, codes_of
from datamodules.reading.example import Field
from doppel.decoding.sampling import SamplingArguments, generation_config
from doppel.errors import UserError
from doppel.files import read_json_lines
from doppel.lispress import is_valid
from doppel.run_folder import run_of
from doppel.settings.yaml_files import read_yaml

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from datamodules.text_format import TextFormat

_README = """# {name}

{statement}

Its privacy card is `privacy_card.json`. {what} With `pip install torch transformers{peft}`, beside this folder:

```python
import torch
{imports}

folder, prompt = {folder}, {prompt}
tokenizer, {load}
ids = torch.tensor([{before}tokenizer(prompt, add_special_tokens=False)["input_ids"] + {behind}] * 5)
written = model.generate({given}, attention_mask=torch.ones_like(ids))[:, ids.shape[1] :]
print(*tokenizer.batch_decode(written, skip_special_tokens=True), sep="\\n")
```

`{behind}` ends the prompt, token {eos} the text, which begins with a blank. How its run samples is in
`generation_config.json`, {reads}: {settings}. {notes}
"""
_WHOLE = {
    "peft": "",
    "imports": "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "load": "model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)",
    "given": "ids",
    "reads": "which `generate` reads",
}
#: Of LoRA weights, which are loaded on top of their base.
_LORA = {
    "peft": " peft",
    "imports": "from peft import PeftModel\n"
    "from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig",
    "load": "settings = AutoTokenizer.from_pretrained(folder), GenerationConfig.from_pretrained(folder)\n"
    "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}), folder)",
    "given": "ids, generation_config=settings",
    "reads": "which `generate` is given",
}

#: Of LoRA weights whose base was packed for their training.
_FOUR_BITS = (
    " They were trained on that base in four bits: whole, as below, it gives them inputs that are a little other; "
    '`quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="{kind}")` of transformers packs '
    "it as in training."
)


@dataclass(frozen=True)
class Prompting:
    """What a trained model is asked with.

    Attributes:
        source: Field of its prompts; None for a model without one.
        target: Field that it writes.
        example: A prompt that a step of its run has released, or a public label; None: there is none at hand.
        sampling: How its run samples.
        is_drawn: Whether its run draws by released shares from what it writes.
    """

    source: Field | None
    target: Field
    example: str | None
    sampling: SamplingArguments
    is_drawn: bool = False

    @classmethod
    def of(cls, stage_dir: Path, config: StageConfig, text_format: TextFormat) -> Prompting:
        """Build the prompting of a stage, from its configuration and from how its run has sampled.

        Formal guarantees:
            The example is a tree that the run's own private models wrote, as a step has released it, a line of the
            public list of labels, or the first value of each attribute in the public schema: nothing of the private
            turns is read.
        """
        kind = str((config.content.get("model") or {}).get("class_path")).rpartition(".")[2]
        source: Field | None = config.model.get("source")
        target: Field = config.model.get("target", "utterance")
        if kind == "ParseTreeLM":
            target = "parse"
        if kind == "Parse2Utterance":
            source = source or "parse"
        stage_dir = stage_dir.resolve()
        run = run_of(stage_dir)
        codes = codes_of(Columns.from_config(config.data)) if source == "label" else None
        example = _label(run) if source == "label" else _tree(run) if source == "parse" else None
        example = example if codes is None else codes.write([0] * len(codes.names))
        given = _sampled(run, str(stage_dir.relative_to(run))) or config.model.get("sampling") or {}
        known = {field.name for field in dataclasses.fields(SamplingArguments)}
        arguments = SamplingArguments(**{name: value for name, value in given.items() if name in known})
        return cls(source, target, example, arguments, (stage_dir / SHARES).is_file())

    def generation_config(self, text_format: TextFormat) -> GenerationConfig:
        """Return the settings for ``generate``, which otherwise has defaults of its own."""
        bounded = self.sampling
        if bounded.max_new_tokens is None:  # until the last position, in a run
            bounded = dataclasses.replace(bounded, max_new_tokens=text_format.max_length)
        return generation_config(text_format, bounded)

    def readme(self, out: Path, text_format: TextFormat, statement: str, base: Mapping[str, Any] | None = None) -> str:
        """Return the lines that sample from the folder, and what they leave out.

        Args:
            out: The folder.
            text_format: Of the model.
            statement: What its card states.
            base: ``name``, ``sha256`` and, if it has one, ``quantization`` of the base, of a folder of LoRA weights;
                None: it holds the whole model.
        """
        names = {"utterance": "requests", "parse": "trees", "label": "labels"}
        what = f"The model writes {names[self.target]}" + (f" for {names[self.source]}." if self.source else ".")
        text_format = dataclasses.replace(text_format, source=self.source, target=self.target)
        example = self.example or {"parse": "(Yield (Today))", "label": "LABEL"}.get(self.source or "")
        prompt = text_format.prompt_text(example)
        before, behind = text_format.around(prompt)
        settings = self.generation_config(text_format)
        shown = ("num_beams", "top_k", "top_p", "temperature", "max_new_tokens")
        lines = _WHOLE
        if base is not None:
            lines = {**_LORA, "load": _LORA["load"].format(base=json.dumps(base["name"]))}
            what += f" The folder holds LoRA weights for the base `{base['name']}`, whose files have these SHA-256: "
            what += ", ".join(f"{file} `{digest}`" for file, digest in base["sha256"].items()) + ". "
            what += (
                f"vLLM serves it by `--enable-lora --lora-modules {out.name}={out.name}`, above rank 16 with "
                "`--max-lora-rank`."
            )
            what += _FOUR_BITS.format(kind=base["quantization"]) if "quantization" in base else ""
        return _README.format(
            **lines,
            name=out.resolve().name,
            statement=statement,
            what=what,
            folder=json.dumps(out.resolve().name),
            prompt=json.dumps(prompt, ensure_ascii=False),
            before=f"{before} + " if before else "",
            behind=behind,
            eos=text_format.eos_id,
            settings=", ".join(f"`{name}` {getattr(settings, name)}" for name in shown),
            notes=" ".join(self._notes(text_format)),
        )

    def _notes(self, text_format: TextFormat) -> list[str]:
        notes = ["`python cli.py sample RUN` also draws again what is empty, cut off or not well-formed."]
        if "parse" in (self.source, self.target) and text_format.linearisation == "spaced":
            notes.append('Trees have a space inside each quote here, `" lunch "` for `"lunch"`.')
        if text_format.slot_table is not None:
            kind = min(text_format.slot_table.kinds.names, key=lambda name: name != "person")
            notes.append(
                f"Names are placeholders, such as `{kind}1`: put names of your own in their place, as a run does."
            )
        if self.is_drawn:
            notes.append(
                "These lines write texts as often as the model has learnt them; its run draws by the shares that were "
                "released of private requests, such as those of topics, and `sample RUN` does."
            )
        if self.target == "parse" and self.sampling.grammar is not None:
            notes.append("A run writes trees under its grammar, which these lines do not have.")
        if self.source is not None:
            held = f'`" {self.target}: "`' if text_format.task_prefix else "one blank"
            notes.append(f"For another prompt, put its {self.source} behind {held}.")
        return notes


def _sampled(run: Path, stage: str) -> Mapping[str, Any] | None:
    """How the run has sampled from a stage, by its place there; None where it has not."""
    checkpoint = f"{stage}/checkpoints/last.ckpt"
    for entry in Manifest.read(run).find(verb="predict"):
        if checkpoint in entry.inputs and entry.folder and (run / entry.folder / "predict.yaml").is_file():
            sampling: Mapping[str, Any] | None = StageConfig.read(run / entry.folder, "predict.yaml").model.get(
                "sampling"
            )
            return sampling
    return None


def _tree(run: Path) -> str | None:
    """The shortest tree with a call in it that a step of the run has released beside a sample."""
    manifest = Manifest.read(run)
    for entry in manifest.samples().values():
        if manifest.is_as_made(entry) and manifest.path(entry).is_file():
            trees = [line.get("parse") for _, line in read_json_lines(manifest.path(entry))]
            found = sorted(
                {tree for tree in trees if isinstance(tree, str) and is_valid(tree) and len(tree) > 40}, key=len
            )
            if found:
                return found[0]
    return None


def _label(run: Path) -> str | None:
    """The first of the public labels."""
    path = run / "experiment.yaml"
    labels = read_yaml(path).get("labels") if path.is_file() else None
    try:
        return read_labels(Path(str(labels)))[0]
    except UserError:  # the list is elsewhere
        return None

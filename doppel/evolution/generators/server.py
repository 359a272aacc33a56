"""A server that speaks OpenAI's protocol: vLLM or llama.cpp on a machine of one's own, or a vendor's."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doppel.errors import UserError
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.limits import Limits, Pace
from doppel.evolution.generators.reading import KEY, SCHEMA
from doppel.evolution.generators.wording import Question

if TYPE_CHECKING:
    import httpx

#: Statuses after which the same call may well succeed.
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
#: Those after which no other call would succeed either.
_HOPELESS = {401, 402, 403, 404, 405}
#: Those of a call that is not as the server wants it; and what comes of it where it is given again with other fields.
_REFUSED, _OTHER_FIELDS = {400, 422}, "other fields"
#: The form of an answer, as OpenAI's protocol, vLLM and llama.cpp take it; how a server calls it that does not; the
#: same in words; and the tokens of an answer that it takes.
_FORM = {"type": "json_schema", "json_schema": {"name": KEY, "strict": True, "schema": SCHEMA}}
_FORM_NAMES = re.compile("response_format|json_schema|schema|structured|grammar|guided", re.IGNORECASE)
_FORM_WORDS, _FORM_TOKENS = f'\n\nAnswer in JSON: {{"{KEY}": "…"}}, or {{"{KEY}": null}} if you will not.', 16
#: Characters a token, when one has to guess.
_CHARACTERS = 3.0


class ServerModel:
    """Answers by calls of ``POST URL/chat/completions``, several at a time.

    Formal guarantees:
        What is sent are questions, which are public or released: the server may be anybody's. The key of the account
        is read from the environment, sent in the header and written nowhere.

    Answers are asked for as JSON with one field, by ``response_format`` and in words; where the server refuses the
    former, in words alone. A call that fails is given again, at growing distances; one with a field that the server
    does not take, at once and without it. A question that fails for good stays without an answer; too many in a row, a
    refused account or a passed limit end the run with what the server said, and the answers so far are kept.

    Args:
        url: Of the server, up to the version: ``http://127.0.0.1:8080/v1``.
        model: What the server calls the model.
        temperature: Of the sampling.
        top_p: Likewise.
        max_new_tokens: Longest text of an answer.
        limits: What may be asked.
        key_variable: Environment variable with the key of the account; a server of one's own needs none.
        first_wait: Seconds before a failed call is given again; doubled each time.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 64,
        limits: Limits | None = None,
        key_variable: str = "OPENAI_API_KEY",
        first_wait: float = 1.0,
    ) -> None:
        self._url, self._limits = url.rstrip("/"), limits or Limits()
        self._body: dict[str, Any] = {"temperature": temperature, "top_p": top_p}
        self._max_new_tokens = max_new_tokens + _FORM_TOKENS
        self._body |= {"max_tokens": self._max_new_tokens, "response_format": _FORM}
        self._takes_seed, self._has_form = True, False
        self._body |= {"model": model} if model else {}
        self._key, self._first_wait = os.environ.get(key_variable), first_wait
        self._under_way = self._failures = 0
        self._ends: list[UserError] = []

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        """Ask them all.

        Raises:
            UserError: A limit is reached, the server cannot be reached or refuses, or too many answers fail.
        """
        asyncio.run(self._ask_all(questions, answers))

    async def _ask_all(self, questions: Sequence[Question], answers: Answers) -> None:
        import httpx

        self._ends.clear()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        waiting, pace = iter(questions), Pace(self._limits.per_minute)
        limits = httpx.Limits(max_connections=self._limits.concurrency)
        async with httpx.AsyncClient(headers=headers, timeout=self._limits.timeout, limits=limits) as client:

            async def work() -> None:
                for question in waiting:
                    try:
                        await self._ask(client, question, answers, pace)
                    except UserError as error:
                        self._ends.append(error)
                    if self._ends:  # what the others have asked already is waited for: it is paid
                        return

            await asyncio.gather(*(work() for _ in range(min(self._limits.concurrency, len(questions)))))
        if self._ends:
            raise self._ends.pop(0)

    async def _ask(self, client: httpx.AsyncClient, question: Question, answers: Answers, pace: Pace) -> None:
        """One question, until it is answered or has failed for good."""
        why = ""
        attempt = 0
        while attempt <= self._limits.retries:
            guess, most = len(question.words + _FORM_WORDS) / _CHARACTERS, self._max_new_tokens
            self._limits.refuse(answers.spent, self._under_way, guess + most, self._limits.money(guess, most))
            self._under_way += 1
            try:
                await pace.wait()
                why, wait = await self._call(client, question, answers)
            finally:
                self._under_way -= 1
            if not why:
                self._failures = 0
                return
            if why == _OTHER_FIELDS and not self._ends:
                continue
            if wait is None or self._ends:
                break
            if attempt < self._limits.retries:
                await asyncio.sleep(max(wait, self._first_wait * 2**attempt * (0.5 + random.random() / 2)))
            attempt += 1
        self._failures += 1
        if self._failures >= self._limits.max_failures:
            raise UserError(
                f"{self._failures} questions in a row have no answer, the last one for: {why}. The answers so far are "
                "kept: mend that, and give the command again",
                about=self._url,
            )

    async def _call(self, client: httpx.AsyncClient, question: Question, answers: Answers) -> tuple[str, float | None]:
        """One call: why it failed, empty where it did not, and how long to wait at least; None: not to try again."""
        import httpx

        body = {**self._body, "messages": [{"role": "user", "content": question.words + _FORM_WORDS}]}
        if self._takes_seed:
            body["seed"] = int.from_bytes(hashlib.sha256(question.stream.encode()).digest()[:4]) >> 1
        try:
            reply = await client.post(f"{self._url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            answers.charge(calls=1)
            return f"{type(error).__name__}", 0.0
        if reply.status_code in _HOPELESS:
            raise UserError(
                f"it answers with status {reply.status_code}{self._said(reply)}: correct evolution.generator, "
                "evolution.model or the account's key in the environment",
                about=self._url,
            )
        if reply.status_code != 200:
            answers.charge(calls=1)
            if reply.status_code in _REFUSED and self._leave_out(body, reply.text):
                return _OTHER_FIELDS, 0.0
            why = f"status {reply.status_code}{self._said(reply)}"
            return why, _wait(reply) if reply.status_code in _BUSY else None
        try:
            content = reply.json()
            text = content["choices"][0]["message"]["content"]
            if not isinstance(text, str):
                raise TypeError
            text = text.encode("utf-8", "replace").decode()  # half of a pair of surrogates cannot be written
        except (ValueError, KeyError, IndexError, TypeError):
            answers.charge(calls=1)
            return f"an answer that is none{self._said(reply)}", 0.0
        usage = content.get("usage") or {}
        tokens_in = _number(usage.get("prompt_tokens"), len(question.words) / _CHARACTERS)
        tokens_out = _number(usage.get("completion_tokens"), len(text) / _CHARACTERS)
        money = self._limits.money(tokens_in, tokens_out)
        self._has_form |= "response_format" in body
        answers.add(question, text, calls=1, tokens=tokens_in + tokens_out, money=money)
        return "", 0.0

    def _leave_out(self, body: Mapping[str, Any], said: str) -> bool:
        """Take another field for one that the server does not take, or none for a default; whether ``body`` had it."""
        if "max_completion_tokens" in said and "max_tokens" in body:
            self._body.pop("max_tokens", None)
            self._body["max_completion_tokens"] = self._max_new_tokens
            return True
        if re.search(r"\bseed\b", said) and "seed" in body:
            self._takes_seed = False
            return True
        refused = [name for name in ("temperature", "top_p") if body.get(name) == 1 and re.search(rf"\b{name}\b", said)]
        for name in refused:
            self._body.pop(name, None)
        if not refused and "response_format" in body and (_FORM_NAMES.search(said) or not self._has_form):
            self._body.pop("response_format", None)  # a server that names no field may mean this one
            return True
        return bool(refused)

    def _said(self, reply: httpx.Response) -> str:
        """What a server says of a call that failed: its sentence in brackets, without the key of the account."""
        try:
            told = reply.json()
            for name in ("error", "message", "detail"):
                told = told.get(name, told) if isinstance(told, dict) else told
        except ValueError:
            told = reply.text
        text = " ".join(told.split()) if isinstance(told, str) else ""
        text = text.replace(self._key, "…") if self._key else text
        return f' ("{text[:300]}")' if text else ""


def _wait(reply: httpx.Response) -> float:
    """Seconds that a server asks to wait, a minute at most."""
    text = reply.headers.get("retry-after", "")
    return min(60.0, float(text)) if text.replace(".", "", 1).isdigit() else 0.0


def _number(value: Any, guess: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else guess

"""What a server may be asked, and what that may cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from doppel.errors import UserError


@dataclass(frozen=True)
class Limits:
    """How a server is asked, and where it ends. What was answered counts also after an interruption.

    Args:
        max_calls: Calls in total, failed ones included; null: no limit.
        max_tokens: Tokens of prompts and answers in total, as the server counts them; null: no limit.
        max_money: Cost of all calls, in the currency of the prices; null: no limit.
        price_in: Price of a million prompt tokens.
        price_out: Price of a million answer tokens.
        concurrency: Concurrent calls.
        per_minute: Calls started per minute; null: no limit.
        timeout: Seconds after which a call without an answer has failed.
        retries: Retries of a failed call (429, 5xx, no or a torn answer), each after twice the wait; then the prompt
            stays unanswered.
        max_failures: Consecutive unanswered prompts after which the run stops.
    """

    max_calls: int | None = None
    max_tokens: int | None = None
    max_money: float | None = None
    price_in: float = 0.0
    price_out: float = 0.0
    concurrency: int = 8
    per_minute: float | None = None
    timeout: float = 60.0
    retries: int = 5
    max_failures: int = 10

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.retries < 0 or self.max_failures < 1 or not self.timeout > 0:
            raise UserError(
                "evolution.limits: concurrency and max_failures are at least 1, retries at least 0, timeout above 0"
            )
        if self.max_money is not None and not (self.price_in or self.price_out):
            raise UserError("evolution.limits.max_money needs price_in and price_out, of a million tokens each")

    def money(self, tokens_in: float, tokens_out: float) -> float:
        """Return the cost of tokens."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6

    def refuse(self, spent: Mapping[str, float], under_way: int, tokens_each: float, money_each: float) -> None:
        """Refuse a call that could pass a limit.

        Args:
            spent: What was spent: ``calls``, ``tokens``, ``money``.
            under_way: Calls that have begun and not ended.
            tokens_each: Tokens that a call takes at most, about.
            money_each: What a call costs at most, about.

        Raises:
            UserError: It could.
        """
        each = {"calls": 1.0, "tokens": tokens_each, "money": money_each}
        most = {"calls": self.max_calls, "tokens": self.max_tokens, "money": self.max_money}
        for name, limit in most.items():
            used = spent[name] + under_way * each[name]
            if limit is not None and used + each[name] > limit:
                raise UserError(
                    f"evolution.limits.max_{name} is {limit:g}, and {used:g} are used or under way: it stops before a "
                    "call that could pass it. The answers are kept: raise the limit and give the command again"
                )


class Pace:
    """Lets calls begin no faster than so many a minute.

    Args:
        per_minute: How many; None: any number.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._gap = 0.0 if per_minute is None else 60.0 / per_minute
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next call may begin."""
        now = time.monotonic()
        self._next = max(self._next, now) + self._gap
        await asyncio.sleep(self._next - self._gap - now)

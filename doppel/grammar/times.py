"""Times that are counted out rather than written down: clock times, calendar days, holidays, numbers."""

from __future__ import annotations

from doppel.grammar.synchronous import Rule, rule

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
HOLIDAYS = {
    "Christmas": ("Christmas", "Christmas day"),
    "Halloween": ("Halloween",),
    "Thanksgiving": ("Thanksgiving",),
    "NewYearsDay": ("New Year's Day", "New Years"),
    "NewYearsEve": ("New Year's Eve",),
    "ValentinesDay": ("Valentine's Day",),
    "IndependenceDay": ("the 4th of July", "Independence Day"),
    "Easter": ("Easter",),
    "LaborDay": ("Labor Day",),
    "MemorialDay": ("Memorial Day",),
    "MothersDay": ("Mother's Day",),
    "StPatricksDay": ("St. Patrick's Day",),
}
NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
ORDINAL_WORDS = {1: "first", 2: "second", 3: "third", 4: "fourth"}


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th …"""
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _clock_rules() -> list[Rule]:
    """Hours by how often people meet then; afternoon hours are also said without am or pm."""
    rules = [rule(14, "(Noon)", "noon", "12 noon", "noon"), rule(1, "(Midnight)", "midnight")]
    afternoon = (9, 14, 18, 16, 15, 11, 9, 7, 4, 2, 1, 5)
    morning = (0.3, 0.3, 0.3, 0.4, 1, 2, 5, 9, 12, 12, 8, 0.5)
    for hour in range(1, 13):
        word = NUMBER_WORDS[hour]
        both = (f"{hour} {{half}}", f"{hour}{{half}}", f"{hour}:00 {{half}}", f"{hour}:00{{half}}")
        pm = tuple(text.replace("half", "pm") for text in both) + (f"{hour}pm", f"{word} {{pm}}")
        am = tuple(text.replace("half", "am") for text in both) + (f"{hour}am",)
        bare_pm = (f"{hour}", f"{hour}", f"{hour} o'clock", word) if hour < 8 else ()
        bare_am = (f"{hour}", f"{hour} o'clock") if 8 <= hour < 12 else ()
        rules.append(rule(afternoon[hour - 1], f"(NumberPM {hour}L)", *pm, *bare_pm))
        rules.append(rule(morning[hour - 1], f"(NumberAM {hour}L)", *am, *bare_am))
        for minute, share in ((30, 0.3), (15, 0.1), (45, 0.1), (20, 0.03), (10, 0.03), (50, 0.02), (5, 0.02)):
            texts = [f"{hour}:{minute:02d} {{half}}", f"{hour}:{minute:02d}{{half}}"]
            spoken = [f"{hour}:{minute:02d}"]
            spoken += [f"half past {hour}"] if minute == 30 else []
            spoken += [f"quarter past {hour}"] if minute == 15 else []
            spoken += [f"{word} thirty"] if minute == 30 else []
            for name, weight, natural in (
                ("Pm", afternoon[hour - 1], hour < 8 or hour == 12),
                ("Am", morning[hour - 1], 8 <= hour < 12),
            ):
                phrases = [text.replace("half", name.lower()) for text in texts] + (spoken if natural else [])
                rules.append(rule(share * weight, f"(HourMinute{name} {hour}L {minute}L)", *phrases))
    for hour in range(13, 23):
        rules.append(rule(0.06, f"(HourMilitary {hour}L)", f"{hour}:00", f"{hour}00 hours"))
        rules.append(rule(0.04, f"(HourMinuteMilitary {hour}L 30L)", f"{hour}:30"))
    rules += [
        rule(1.5, "(Lunch)", "lunch time", "lunchtime"),
        rule(0.8, "(Dinner)", "dinner time", "dinnertime"),
    ]
    rules += [
        rule(0.4, "(Breakfast)", "breakfast time"),
        rule(0.4, "(EndOfWorkDay)", "the end of the day", "close of business"),
    ]
    rules += [rule(0.15, "(Brunch)", "brunch time")]
    return rules


def _month_day_rules() -> list[Rule]:
    rules = []
    for month in MONTHS:
        short = month[:3]
        for day in range(1, 29):
            rules.append(
                rule(
                    0.09,
                    f"(MD {day}L ({month}))",
                    f"{month} {ordinal(day)}",
                    f"{month} {day}",
                    f"the {ordinal(day)} of {month}",
                    f"{short} {ordinal(day)}",
                    f"{short} {day}",
                )
            )
        for year in (2025, 2026, 2027):
            for day in (3, 9, 12, 18, 25):
                numeric = f"{MONTHS.index(month) + 1}/{day}/{year}"
                texts = (f"{month} {ordinal(day)} {year}", f"{month} {day}, {year}", numeric)
                rules.append(rule(0.012, f"(MDY {day}L ({month}) {year}L)", *texts))
    return rules


def counted_out() -> dict[str, list[Rule]]:
    """Return nonterminals of clock times, calendar days, holidays and numbers, with their productions."""
    return {
        "clock": _clock_rules(),
        "hour_pm": [rule(1, f"(NumberPM {h}L)", f"{h}", f"{h}pm", f"{h} pm", f"{h}:00") for h in range(1, 8)],
        "dow": [rule(w, f"({d})", d) for w, d in zip((14, 13, 12, 13, 17, 9, 7), DAYS, strict=True)],
        "month": [rule(1, f"({m})", m) for m in MONTHS],
        "holiday": [
            rule(12 / rank, f"(Holiday.{holiday})", *names)
            for rank, (holiday, names) in enumerate(HOLIDAYS.items(), start=1)
        ],
        "small": [rule(8 / n**2, f"{n}L", str(n), NUMBER_WORDS[n]) for n in range(2, 11)],
        "day_number": [rule(1, f"{n}L", ordinal(n)) for n in range(1, 32)],
        "week_ordinal": [rule(1, f"{n}L", word) for n, word in ORDINAL_WORDS.items()],
        "month_day": _month_day_rules(),
    }

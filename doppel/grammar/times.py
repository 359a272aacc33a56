"""Rules of times: clock times, dates, moments, durations, and ranges of dates and times."""

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
NOW = "(Now)"
TODAY = "(Today)"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th …"""
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


def _minutes() -> list[Rule]:
    shares = {15: 2, 45: 2, 20: 1, 10: 0.6, 90: 0.6, 5: 0.5, 25: 0.4, 40: 0.3, 50: 0.2}
    return [rule(weight, f"(toMinutes {n}L)", f"{n} minutes", f"{n} min", f"{n} mins") for n, weight in shares.items()]


def _spans_of_days() -> list[Rule]:
    spans = ((1, 5), (2, 6), (3, 9), (10, 14), (11, 20), (12, 15), (18, 22), (21, 28))
    return [
        rule(
            0.05,
            f"(MonthDayToDay {{month}} {first}L {last}L)",
            f"{{month}} {first} to {last}",
            f"from {{month}} {ordinal(first)} to the {ordinal(last)}",
        )
        for first, last in spans
    ]


RULES: dict[str, list[Rule]] = {
    "am": [rule(1, "", "am", "AM", "a.m.", "am", "AM")],
    "pm": [rule(1, "", "pm", "PM", "p.m.", "pm", "PM", "pm")],
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
    "year": [rule(w, f"{y}L", str(y)) for w, y in ((3, 2026), (2, 2027), (1, 2025), (1, 2028), (0.5, 2030))],
    "period": [
        rule(6, "(toDays {small})", "{small} days"),
        rule(2, "(toWeeks {small})", "{small} weeks"),
        rule(2, "(toWeeks 1L)", "a week", "one week", "1 week"),
        rule(1, "(toMonths {small})", "{small} months"),
        rule(1, "(toMonths 1L)", "a month", "one month"),
        rule(0.5, "(toYears 1L)", "a year", "one year"),
        rule(0.5, "(toWeeks (Acouple))", "a couple weeks", "a couple of weeks"),
        rule(0.5, "(toDays (Afew))", "a few days"),
    ],
    # a date without preposition, and one with the preposition that it takes
    "bare_date": [
        rule(26, "(Tomorrow)", "tomorrow"),
        rule(14, TODAY, "today"),
        rule(1.2, "(Yesterday)", "yesterday"),
        rule(2, "(adjustByPeriod (Tomorrow) (toDays 1L))", "the day after tomorrow"),
        rule(4, "(DowOfWeekNew {dow} (NextWeekList))", "next {dow}", "{dow} next week", "{dow} of next week"),
        rule(3, "(DowOfWeekNew {dow} (ThisWeek))", "this {dow}", "{dow} this week", "this coming {dow}"),
        rule(1, "(previousDayOfWeek (Today) {dow})", "last {dow}"),
        rule(1, "(adjustByPeriod (Today) {period})", "{period} from today", "{period} from now"),
        rule(0.6, "(adjustByPeriod (NextDOW {dow}) (toWeeks 1L))", "a week from {dow}", "{dow} after next"),
    ],
    "named_date": [
        rule(34, "(NextDOW {dow})", "{dow}"),
        rule(7, "(nextDayOfMonth (Today) {day_number})", "the {day_number}"),
        rule(22, "{month_day}", "{month_day}"),
        rule(3, "(NextHolidayFromToday {holiday})", "{holiday}"),
        rule(0.6, "(PeriodBeforeDate (NextHolidayFromToday {holiday}) {period})",
             "{period} before {holiday}"),
        rule(0.5, "(LastDayOfMonth {month})", "the last day of {month}"),
        rule(0.4, "(HolidayYear {holiday} {year})", "{holiday} {year}", "{holiday} of {year}"),
        rule(0.4, "(ClosestDayOfWeek (nextDayOfMonth (Today) {day_number}) {dow})",
             "the {dow} closest to the {day_number}"),
        rule(0.4, "(nextDayOfWeek {month_day} {dow})", "the {dow} after {month_day}"),
        rule(0.3, "(previousDayOfMonth (Today) {day_number})", "the {day_number} of last month"),
        rule(0.3, "(previousDayOfWeek {month_day} {dow})", "the {dow} before {month_day}"),
    ],
    "month_day": _month_day_rules(),
    "date": [rule(5, "{bare_date}", "{bare_date}"), rule(6, "{named_date}", "{named_date}")],
    "on_date": [
        rule(5, "{bare_date}", "[||||for ]{bare_date}"),
        rule(6, "{named_date}", "[on|on|on|on|on|on|for] {named_date}"),
        rule(0.8, "(NextDOW {dow})", "{dow}"),
    ],
    # a moment: DateTime
    "moment": [
        rule(24, "(DateAtTimeWithDefaults {on_date} {clock})", "{on_date} at {clock}"),
        rule(10, "(DateAtTimeWithDefaults {on_date} {clock})", "at {clock} {on_date}"),
        rule(4, "(DateAtTimeWithDefaults {bare_date} {clock})", "{bare_date} {clock}"),
        rule(16, "(NextTime {clock})", "[at|at|at|at|for] {clock}"),
        rule(1.2, "(DateAtTimeWithDefaults (Today) {hour_pm})", "tonight at {hour_pm}",
             "at {hour_pm} tonight", "this evening at {hour_pm}"),
        rule(1, "(DateAtTimeWithDefaults {on_date} (ConvertTimeToPM {clock}))",
             "{on_date} at {clock} in the afternoon"),
        rule(0.4, "(DateAtTimeWithDefaults {on_date} (ConvertTimeToAM {clock}))",
             "{on_date} at {clock} in the morning"),
        rule(1.2, "(adjustByPeriodDuration (Now) {hours})", "in {hours}", "{hours} from now"),
        rule(0.5, "(TimeAfterDateTime (Event.end {the_event}) {clock})",
             "at {clock} after {the_event}"),
        rule(1, "(Event.end {the_event})", "after {the_event}", "right after {the_event}"),
        rule(0.5, "(adjustByPeriodDuration (Event.end {the_event}) {hours})",
             "{hours} after {the_event}"),
        rule(0.4, "(PeriodDurationBeforeDateTime (Event.start {the_event}) {hours})",
             "{hours} before {the_event}"),
    ],
    # a moment without preposition: "move it to …", "make it …"
    "when": [
        rule(24, "(DateAtTimeWithDefaults {date} {clock})", "{date} at {clock}"),
        rule(10, "(DateAtTimeWithDefaults {on_date} {clock})", "{clock} {on_date}"),
        rule(4, "(DateAtTimeWithDefaults {bare_date} {clock})", "{bare_date} {clock}"),
        rule(16, "(NextTime {clock})", "{clock}"),
        rule(1.2, "(DateAtTimeWithDefaults (Today) {hour_pm})", "tonight at {hour_pm}", "{hour_pm} tonight"),
        rule(1, "(Event.end {the_event})", "after {the_event}", "right after {the_event}"),
        rule(0.5, "(adjustByPeriodDuration (Event.end {the_event}) {hours})",
             "{hours} after {the_event}"),
        rule(0.4, "(PeriodDurationBeforeDateTime (Event.start {the_event}) {hours})",
             "{hours} before {the_event}"),
    ],
    "hours": [
        rule(10, "(toHours 1L)", "an hour", "1 hour", "one hour"),
        rule(5, "(toHours {small})", "{small} hours"),
        rule(8, "(toMinutes 30L)", "30 minutes", "half an hour", "thirty minutes", "30 min", "a half hour"),
        *_minutes(),
        rule(2, "(toHours 1.5)", "an hour and a half", "1.5 hours", "one and a half hours",
             "1 and a half hours"),
        rule(1, "(toHours 2.5)", "2.5 hours", "two and a half hours", "2 and a half hours"),
        rule(0.5, "(addDurations (toHours {small}) (toMinutes 15L))", "{small} hours and 15 minutes"),
        rule(0.2, "(toSeconds 30L)", "30 seconds"),
    ],
    # ranges of dates
    "month_or_week": [
        rule(3, "(NextWeekList)", "next week"),
        rule(3, "(ThisWeek)", "this week"),
        rule(2, "(FullMonthofMonth (NextMonth))", "next month"),
        rule(2, "(FullMonthofMonth {month})", "in {month}"),
    ],
    "range": [
        rule(14, "(NextWeekList)", "next week"),
        rule(16, "(ThisWeek)", "this week"),
        rule(7, "(ThisWeekend)", "this weekend", "the weekend"),
        rule(3, "(NextWeekend)", "next weekend"),
        rule(5, "(FullMonthofMonth {month})", "in {month}", "in {month}", "during {month}"),
        rule(3, "(FullMonthofMonth (NextMonth))", "next month"),
        rule(3, "(FullMonthofMonth (Date.month (Today)))", "this month"),
        rule(1.5, "(NextPeriod {period})", "in the next {period}", "over the next {period}"),
        rule(1, "(LastPeriod {period})", "in the last {period}", "in the past {period}"),
        rule(1.2, "(LastWeekNew)", "last week"),
        rule(0.6, "(FullMonthofLastMonth)", "last month"),
        rule(0.6, "(FullYearofYear {year})", "in {year}"),
        rule(0.4, "(FullYearofYear (NextYear))", "next year"),
        rule(0.2, "(FullYearofYear (LastYear))", "last year"),
        rule(0.5, "(EarlyDateRange {month_or_week})", "early {month_or_week}"),
        rule(0.4, "(LateDateRange {month_or_week})", "late {month_or_week}"),
        rule(0.7, "(WeekOfDateNew {month_day})", "the week of {month_day}"),
        rule(0.4, "(NumberWeekOfMonth {week_ordinal} {month})", "the {week_ordinal} week of {month}"),
        rule(0.3, "(NumberWeekFromEndOfMonth 1L {month})", "the last week of {month}"),
        rule(0.3, "(WeekendOfMonth {week_ordinal} {month})", "the {week_ordinal} weekend of {month}"),
        rule(0.3, "(LastWeekendOfMonth {month})", "the last weekend of {month}"),
        rule(0.4, "(WeekendOfDate {month_day})", "the weekend of {month_day}"),
        rule(0.8, "(DowToDowOfWeek {dow.1} {dow.2} (NextWeekList))", "{dow.1} through {dow.2} next week",
             "{dow.1} to {dow.2} next week"),
        rule(0.4, "(DowToDowOfWeek {dow.1} {dow.2} (ThisWeek))", "from {dow.1} to {dow.2}"),
        *_spans_of_days(),
        rule(0.4, "(SeasonSummer)", "this summer", "in the summer"),
        rule(0.3, "(SeasonWinter)", "this winter", "in the winter"),
        rule(0.2, "(SeasonSpring)", "this spring", "in the spring"),
        rule(0.2, "(SeasonFall)", "this fall"),
        rule(0.3, "(Future)", "in the future"),
    ],
    # ranges of clock time
    "part_of_day": [
        rule(9, "(Morning)", "morning"),
        rule(9, "(Afternoon)", "afternoon"),
        rule(6, "(Evening)", "evening"),
        rule(3, "(Night)", "night"),
        rule(0.7, "(EarlyTimeRange (Morning))", "early morning"),
        rule(0.5, "(EarlyTimeRange (Afternoon))", "early afternoon"),
        rule(0.7, "(LateMorning)", "late morning"),
        rule(0.7, "(LateAfternoon)", "late afternoon"),
        rule(0.3, "(LateTimeRange (Evening))", "late evening"),
    ],
    "hours_range": [
        rule(4, "(TimeToTime {hour_pm} {clock})", "between {hour_pm} and {clock}",
             "from {hour_pm} to {clock}", "from {hour_pm} until {clock}", "{hour_pm} to {clock}"),
        rule(1, "(TimeAround {clock})", "around {clock}", "about {clock}"),
        rule(0.5, "(Early)", "early", "early in the day"),
        rule(0.5, "(Late)", "late", "late in the day"),
    ],
}  # fmt: skip

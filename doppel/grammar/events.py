"""Rules of the calendar: descriptions of events, and requests to create, find, change and delete them."""

from __future__ import annotations

from doppel.grammar import lexicon
from doppel.grammar.synchronous import Rule, RuleSet, conjunction, rule

THAT_EVENT = "(Execute (refer (extensionConstraint (^(Event) EmptyStructConstraint))))"
ANY_EVENT = "(^(Event) EmptyStructConstraint)"
SUBJECT = "(Event.subject_? (?= {subject}))"
LIKE_SUBJECT = "(Event.subject_? (?~= {subject}))"
AWAY = "(Event.showAs_? (?= (ShowAsStatus.OutOfOffice)))"
START = "(Event.start_? (?= {moment}))"
DURATION = "(Event.duration_? (?= {hours}))"
LOCATION = "(Event.location_? (?= (LocationKeyphrase.apply {location})))"


def created(constraint: str) -> str:
    """The program that proposes a new event."""
    return f"(Yield (CreateCommitEventWrapper (CreatePreflightEventWrapper {constraint})))"


def found(constraint: str) -> str:
    """The events that match a constraint."""
    return f"(QueryEventResponse.results (FindEventWrapperWithDefaults {constraint}))"


def deleted(event: str) -> str:
    """The program that proposes to delete an event."""
    return f"(Yield (DeleteCommitEventWrapper (DeletePreflightEventWrapper (Event.id {event}))))"


def updated(event: str, change: str) -> str:
    """The program that proposes to change an event."""
    return f"(Yield (UpdateCommitEventWrapper (UpdatePreflightEventWrapper (Event.id {event}) {change})))"


def _new_event_rules() -> list[Rule]:
    """Descriptions of a new event: which slots are filled, in which order they are said."""
    whom, place, long = "with {attendees}", "[at|in] {location}", "for {hours}"
    rules = [
        rule(16, conjunction(SUBJECT, START), "{subject} {moment}", "{subject} {moment}",
             "{subject} [scheduled|set|] {moment}"),
        rule(9, f"(EventOnDate {{on_date}} {SUBJECT})", "{subject} {on_date}"),
        rule(9, conjunction(SUBJECT, START, "{attendees}"), f"{{subject}} {whom} {{moment}}",
             f"{{subject}} {{moment}} {whom}"),
        rule(7, conjunction(START, "{attendees}"), f"meeting {whom} {{moment}}",
             f"meeting {{moment}} {whom}"),
        rule(4, "{attendees}", f"meeting {whom}", f"event {whom}"),
        rule(5, conjunction(SUBJECT, "{attendees}"), f"{{subject}} {whom}"),
        rule(7, SUBJECT, "{subject}",
             "[event|an event|new event|meeting] [called|named|titled|for] {subject}"),
        rule(4, START, "meeting {moment}", "event {moment}", "appointment {moment}"),
        rule(5, conjunction(SUBJECT, START, DURATION), f"{{subject}} {{moment}} {long}",
             f"{{subject}} {long} {{moment}}", "{hours} [long |]{subject} {moment}"),
        rule(5, conjunction(SUBJECT, START, LOCATION), f"{{subject}} {place} {{moment}}",
             f"{{subject}} {{moment}} {place}"),
        rule(3, f"(EventOnDate {{on_date}} {conjunction(SUBJECT, '{attendees}')})",
             f"{{subject}} {whom} {{on_date}}", f"{{subject}} {{on_date}} {whom}"),
        rule(3, conjunction(SUBJECT, LOCATION), f"{{subject}} {place}"),
        rule(2.5, conjunction(SUBJECT, START, LOCATION, "{attendees}"),
             f"{{subject}} {whom} {place} {{moment}}", f"{{subject}} {{moment}} {place} {whom}"),
        rule(2, conjunction(SUBJECT, START, DURATION, "{attendees}"),
             f"{{subject}} {whom} {{moment}} {long}"),
        rule(2, conjunction(SUBJECT, "(Event.start_? {start_range})"), "{subject} {start_range}"),
        rule(1.2, conjunction(SUBJECT, START, DURATION, LOCATION), f"{{subject}} {{moment}} {long} {place}"),
        rule(3, f"(EventOnDateFromTimeToTime {{on_date}} {SUBJECT} {{hour_pm}} {{clock}})",
             "{subject} {on_date} from {hour_pm} to {clock}",
             "{subject} {on_date} [between|from] {hour_pm} [and|until] {clock}"),
        rule(2.5, f"(EventOnDateWithTimeRange (EventOnDate {{on_date}} {SUBJECT}) {{part_of_day}})",
             "{subject} {on_date} [in the |]{part_of_day}", "{subject} in the {part_of_day} {on_date}"),
        rule(2, f"(EventOnDateWithTimeRange (EventOnDate {{on_date}} {SUBJECT}) {{hours_range}})",
             "{subject} {on_date} {hours_range}"),
        rule(2.5, f"(EventDuringRange {SUBJECT} {{range}})", "{subject} {range}",
             "{subject} sometime {range}"),
        rule(1.5, f"(EventDuringRange {conjunction(SUBJECT, '{attendees}')} {{range}})",
             f"{{subject}} {whom} {{range}}"),
        rule(2, f"(EventAllDayOnDate {SUBJECT} {{on_date}})", "all day {subject} {on_date}",
             "{subject} [all day |]{on_date}[| all day]"),
        rule(1, f"(EventAllDayForDateRange {SUBJECT} {{range}})", "{subject} all {range}",
             "all day {subject} {range}"),
        rule(0.7, f"(EventAllDayStartingDateForPeriod {SUBJECT} {{on_date}} {{period}})",
             "{subject} starting {on_date} for {period}"),
        rule(0.7, f"(EventAllDayDateUntilDate {{date.2}} {SUBJECT} {{date}})",
             "{subject} from {date} [until|to|through] {date.2}"),
        rule(0.8, conjunction(SUBJECT, START, "(Event.showAs_? (?= {status}))"),
             "{subject} {moment} and [mark|show] [it|me] as {status}"),
        rule(0.8, conjunction(SUBJECT, START, "(Event.location_? (roomRequest))"),
             "{subject} {moment} in a conference room", "{subject} {moment} and book a room"),
        rule(0.7, f"(EventAfterDateTime {SUBJECT} (Event.end {{the_event}}))",
             "{subject} [sometime |]after {the_event}"),
        rule(0.5, f"(EventBeforeDateTime (Event.start {{the_event}}) {SUBJECT})",
             "{subject} before {the_event}"),
        rule(0.6, f"(EventForRestOfToday {SUBJECT})", "{subject} for the rest of [the day|today]"),
        rule(0.5, f"(EventSometimeOnDate {{on_date}} {SUBJECT})", "{subject} sometime {on_date}"),
        rule(0.5, f"(EventOnDateAfterTime {{on_date}} {SUBJECT} {{clock}})",
             "{subject} {on_date} after {clock}"),
        rule(0.3, f"(EventBetweenEvents {SUBJECT} {{the_event}} {{the_event.2}})",
             "{subject} between {the_event} and {the_event.2}"),
        rule(0.3, f"(SetOtherOrganizer {conjunction(SUBJECT, START)} {{person}})",
             "{subject} {moment} organized by {person}"),
        rule(0.3, "(Event.attendees_? (AttendeeListHasRecipientWithType {person} (AttendeeType.Optional)))",
             "meeting with {person} as [an |]optional[| attendee]"),
    ]  # fmt: skip
    return rules


def _filter_rules() -> list[Rule]:
    """Noun phrases of existing events: "my lunch with Dan tomorrow"."""
    with_who = "with {attended}"
    return [
        rule(14, LIKE_SUBJECT, "{subject}"),
        rule(9, f"(EventOnDate {{on_date}} {LIKE_SUBJECT})", "{subject} {on_date}"),
        rule(4, "{attended}", f"meeting {with_who}", f"appointment {with_who}"),
        rule(4, conjunction(LIKE_SUBJECT, "{attended}"), f"{{subject}} {with_who}"),
        rule(3, "(EventOnDate {on_date} {attended})", f"meeting {with_who} {{on_date}}",
             f"meeting {{on_date}} {with_who}"),
        rule(2, f"(EventOnDate {{on_date}} {conjunction(LIKE_SUBJECT, '{attended}')})",
             f"{{subject}} {with_who} {{on_date}}"),
        rule(3, f"(EventOnDateTime {{moment}} {LIKE_SUBJECT})", "{subject} {moment}"),
        rule(3, f"(EventOnDateTime {{moment}} {ANY_EVENT})", "meeting {moment}", "appointment {moment}",
             "event {moment}"),
        rule(3, f"(EventDuringRange {LIKE_SUBJECT} {{range}})", "{subject} {range}"),
        rule(2, f"(EventOnDateWithTimeRange (EventOnDate {{on_date}} {LIKE_SUBJECT}) {{part_of_day}})",
             "{subject} {on_date} in the {part_of_day}", "{subject} {on_date} {part_of_day}"),
        rule(1.2, f"(EventOnDateWithTimeRange (EventOnDate {{on_date}} {ANY_EVENT}) {{part_of_day}})",
             "meeting {on_date} [in the |]{part_of_day}"),
        rule(1.5, f"(EventAtTime {LIKE_SUBJECT} {{clock}})", "{clock} {subject}", "{subject} at {clock}"),
        rule(0.8, conjunction(LIKE_SUBJECT, "(Event.location_? (?= (LocationKeyphrase.apply {location})))"),
             "{subject} at {location}"),
        rule(0.3, "(& {attended} (Event.isOneOnOne_? (?= true)))", "one on one with {attended}",
             "1:1 with {attended}"),
        rule(0.2, f"(EventRescheduled {LIKE_SUBJECT})", "rescheduled {subject}"),
        rule(0.3, f"(EventDuringRangeDateTime {LIKE_SUBJECT} (NextPeriodDuration (PeriodDuration.apply "
             f"(toDays 0L) {{hours}})))",
             "{subject} in the next {hours}"),
    ]  # fmt: skip


ADD = (
    "[can you |could you |please |would you |]{make} {a}{new_event}",
    "[can you |could you |please |]{make} {a}{new_event}",
    "{make} {a}{new_event}",
    "{make} {a}{new_event}[| please|, please]",
    "[I need|I want|I'd like|I would like] to {make} {a}{new_event}",
    "[put {a}{new_event} on|put {a}{new_event} in|add {a}{new_event} to] my calendar",
    "[can you |please |]put {new_event} [on|in] my calendar",
    "I have {a}{new_event}",
    "I'm having {a}{new_event}",
    "[we need|I need] {a}{new_event}",
    "{new_event}",
    "[let's|lets] [do|have|schedule|plan] {a}{new_event}",
)

RULES: RuleSet = {
    "subject": lexicon.subject,
    "location": lexicon.location,
    "comment": lexicon.comment,
    "make": [
        rule(1, "", "add", "create", "schedule", "make", "set up", "book", "add", "schedule", "create",
             "plan", "put in", "set"),
    ],
    "a": [rule(1, "", "a ", "a ", "a ", "a new ", "", "", "", "my ", "the ")],
    "status": [
        rule(3, "(ShowAsStatus.Busy)", "busy"),
        rule(3, "(ShowAsStatus.OutOfOffice)", "out of office", "out of the office"),
        rule(1, "(ShowAsStatus.Tentative)", "tentative"),
        rule(1, "(ShowAsStatus.Free)", "free"),
        rule(0.7, "(ShowAsStatus.WorkingElsewhere)", "working elsewhere"),
    ],
    "start_range": [
        rule(3, "(DateTimeConstraint {part_of_day} {on_date})", "{on_date} {part_of_day}",
             "{on_date} in the {part_of_day}"),
        rule(1, "(OnDateAfterTime {on_date} {clock})", "{on_date} after {clock}"),
        rule(1, "(OnDateBeforeTime {on_date} {clock})", "{on_date} before {clock}"),
        rule(0.4, "(Later)", "later"),
        rule(0.3, "(AroundDateTime {when})", "around {when}"),
        rule(0.2, "(DateTimeAndConstraintBetweenEvents {the_event} {the_event.2})",
             "between {the_event} and {the_event.2}"),
        rule(0.3, "(DateTimeFromDowConstraint (Weekdays) {clock})", "on a weekday at {clock}"),
        rule(0.2, "(DateTimeFromDowConstraint (Weekend) {clock})", "on a weekend at {clock}"),
        rule(0.3, "(orConstraint (?= {moment}) (?= {moment.2}))", "either {moment} or {moment.2}"),
    ],
    "new_event": _new_event_rules(),
    "events": _filter_rules(),
    "one": [rule(1, f"(singleton {found('{events}')})", "{events}")],
    # an existing event used as a landmark of time
    "the_event": [
        rule(3, f"(singleton {found(LIKE_SUBJECT)})", "[my|the] {subject}"),
        rule(1, f"(singleton {found('{attended}')})", "my meeting with {attended}"),
        rule(1, THAT_EVENT, "that", "the meeting", "it"),
    ],
    "create": [
        rule(92, created("{new_event}"), *ADD),
        rule(9, created(conjunction(SUBJECT, START)),
             "{moment} [I have |we have |add |put |schedule |let's do |][a |my |]{subject}",
             "{moment} {make} {subject}", "{moment} {subject}"),
        rule(4, created(f"(EventOnDate {{on_date}} {SUBJECT})"),
             "{on_date} [I have |add |put |schedule |there is |][a |my |]{subject}",
             "{on_date} {make} {subject}"),
        rule(3, created(conjunction(SUBJECT, START, "{attendees}")),
             "{moment} [I have |add |schedule |]{subject} with {attendees}",
             "{moment} {subject} with {attendees}"),
        rule(2, f"(do {created('{new_event}')} {created('{new_event.2}')})",
             "{make} {new_event} and {new_event.2}", "{make} {new_event} and [also |]{make} {new_event.2}"),
        rule(2, f"(do {created('{new_event}')} (Yield (WeatherForEvent {THAT_EVENT})))",
             "{make} {new_event} and [tell me|check] the weather[ for it|]"),
        rule(1.5, f"(let (x0 {{person}}) (do (Yield (PersonFromRecipient x0)) "
             f"{created(conjunction('(Event.attendees_? (AttendeeListHasRecipient x0))', START))}))",
             "[look up|find] {person} and [schedule|set up] a meeting with [him|her|them] {moment}"),
        rule(1.5, f"(let (x0 {{on_date}}) (do {created(f'(EventOnDate x0 {SUBJECT})')} "
             f"{created('(EventOnDate x0 (Event.subject_? (?= {subject.2})))')}))",
             "{make} {subject} and {subject.2} {on_date}", "{on_date} {make} {subject} and {subject.2}"),
        rule(1, created(f"(EventOnDate {{on_date}} {ANY_EVENT})"),
             "{make} [an event|a meeting|something] {on_date}", "block off {on_date}"),
        rule(1,
             created(f"(EventAllDayOnDate {conjunction(SUBJECT, AWAY)} {{on_date}})"),
             "I'm out of office {on_date} for {subject}", "I'll be out {on_date} for {subject}"),
    ],
}  # fmt: skip

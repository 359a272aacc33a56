"""Rules of the talk around requests: confirmations, choices, revisions, thanks, and what is out of scope."""

from __future__ import annotations

from doppel.grammar.events import ANY_EVENT, LOCATION, SUBJECT
from doppel.grammar.synchronous import Rule, RuleSet, rule

ACTION = "(refer (^(Dynamic) ActionIntensionConstraint))"
OUTPUT = '(refer (^(Dynamic) roleConstraint (Path.apply "output")))'


def _revised(change: str) -> str:
    """The program that changes an event still under discussion."""
    return f"(Yield (Execute (ReviseConstraint {OUTPUT} (^(Event) ConstraintTypeIntension) {change})))"


FENCES: dict[str, tuple[float, tuple[str, ...]]] = {
    "FenceScope": (30, (
        "order [me |]a pizza", "play some music", "[call|text] {name}", "book [me |]a flight to {city}",
        "send an email to {name}", "turn [on|off] the lights", "what time is it in {city}?",
        "[get|call] me [an Uber|a cab|a taxi]", "what's the score of the game?",
        "set [a|my] timer for {hours}", "order flowers for {name}", "reserve a table at {venue}",
        "buy tickets [to|for] {subject}", "how do I cook {place_kind} food?", "what movies are playing?",
        "translate {subject} to Spanish", "what's the stock price of {venue}?", "find me a hotel in {city}",
        "take a note: {subject}", "read my email", "make me a sandwich", "tell me a joke",
        "who won the election?",
    )),
    "FenceRecurring": (12, (
        "[make|set] {subject} [every|each] {dow}", "schedule {subject} every [day|week|month|morning]",
        "make it [repeat|recur] [weekly|daily|monthly]", "add a recurring {subject} on {dow}s",
        "I have {subject} every {dow} at {clock}", "repeat {subject} every other {dow}",
    )),
    "FenceReminder": (10, (
        "remind me to {subject}", "set a reminder for {subject}",
        "[can you |]remind me about [my |]{subject} {moment}", "[set an|add an] alarm for {clock}",
        "wake me up at {clock}", "send me a reminder {hours} before {subject}",
    )),
    "FenceNavigation": (7, (
        "[how do I get|give me directions|navigate] to {venue}", "how far is {venue}[ from here|]?",
        "how long [does it take|will it take] to get to {city}?", "what's the traffic like to {venue}?",
        "when should I leave for {subject}?", "take me to {location}",
    )),
    "FenceWeather": (6, (
        "is there a [tornado|hurricane|flood] warning[ in {city}|]?",
        "what's the pollen count[ in {city}|]?", "what is the air quality in {city}?",
        "when is the next full moon?", "what was the weather on this day {small} years ago?",
        "is there a good day to go skiing in {city}?", "which is warmer, {city} or {city.2}?",
    )),
    "FenceConditional": (5, (
        "if it rains {on_date}[,|] [cancel|move] {subject}", "if {name} is free[,|] schedule {subject}",
        "[cancel|move] {subject} if {name} can't make it", "if it's sunny add {subject} to my calendar",
    )),
    "FencePeopleQa": (5, (
        "when is {name}'s birthday?", "how old is {name}?", "where does {name} live?",
        "what does {name} do?", "is {name} married?", "what's {name}'s job title?",
        "how long has {name} worked here?",
    )),
    "FencePlaces": (5, (
        "what's on the menu at {venue}?", "does {venue} have {subject}?",
        "how much is {subject} at {venue}?", "what's the best dish at {venue}?",
        "is {venue} [crowded|busy][ right now|]?", "show me pictures of {venue}",
    )),
    "FenceAttendee": (4, (
        "invite everyone [from|at] {venue}", "invite {small} friends", "add the whole {subject} group",
        "invite people who like {subject}", "ask {name} if [he|she] can bring {name.2}",
    )),
    "FenceMultiAction": (4, (
        "move all my meetings {on_date} to {date}", "cancel all [of |]my {subject}",
        "delete all my meetings with {name}", "reschedule everything {range}",
    )),
    "FenceConferenceRoom": (3, (
        "is {location} available?", "[book|reserve] {location}[| {on_date}]",
        "find a room for {small} people", "what rooms are free {on_date}?",
    )),
    "FenceTriviaQa": (3, (
        "who invented {subject}?", "what is the capital of {city}?", "how many people live in {city}?",
        "what's the population of {city}?", "who is the mayor of {city}?", "how tall is {name}?",
    )),
    "FenceSpecify": (3, (
        "the [first|second|other] {subject}", "not that {name}", "the one in {location}",
        "no the other one", "a different {name}",
    )),
    "FenceDateTime": (3, (
        "how many days until {holiday}?", "what is today's date?", "what day is it?", "what time is it?",
        "how many weeks are left {range}?",
    )),
    "FenceComparison": (2.5, (
        "which is longer, {subject} or {subject.2}?", "do I have more {subject} than {subject.2}?",
        "which meeting is first, {subject} or {subject.2}?",
    )),
    "FenceAggregation": (2.5, (
        "how many hours [of meetings |]do I have {range}?", "which day {range} is busiest?",
        "how much time do I spend in {subject}?", "what's my longest meeting {range}?",
    )),
    "FenceTeams": (2, (
        "start a Teams [call|meeting] with {name}", "message {name} on Teams", "add a Teams link",
        "share my screen",
    )),
    "FenceGibberish": (3, (
        "asdf", "hjkl;", "uh um the", "blah blah", "{subject} {subject.2} {name}", "qwe", "hm the a of",
    )),
    "FenceOther": (5, (
        "what does that mean?", "why?", "I don't know", "you got it wrong",
        "that's [wrong|not right|not what I asked]", "are you sure?", "huh?", "what?",
        "how does that work?",
    )),
    "FenceSwitchTabs": (1, (
        "open [my email|the mail tab]", "switch to [people|mail]", "go to my inbox", "open settings",
    )),
}  # fmt: skip


def _fence_rules() -> list[Rule]:
    return [rule(weight, f"({head})", *phrases) for head, (weight, phrases) in FENCES.items()]


RULES: RuleSet = {
    "confirm": [
        rule(100, "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))",
             "yes", "Yes", "yes please", "yep", "yeah", "ok", "okay", "sure", "looks good",
             "that looks good", "sounds good", "perfect", "great", "yes that's [right|correct|good|fine]",
             "correct", "that's right", "that works", "confirm", "go ahead",
             "yes, [please|thanks|thank you|that's right|that's perfect]", "looks good to me",
             "that is [correct|perfect|fine|great]", "[yes |yeah |]that's perfect", "do it", "please do",
             "[yes|yep|ok] [add|create|book|schedule|save] it", "absolutely",
             "[ok|okay] [great|good|sounds good|do it]", "that's fine", "awesome", "yup", "good", "right",
             "exactly", "[yes |]that's it", "[works|good] for me", "fine", "sounds great"),
        rule(4,
             "(do (Yield (Execute (^(Dynamic) ConfirmAndReturnAction))) (PleasantryAnythingElseCombined))",
             "yes and that's all", "yes, that's [all|it]", "looks good, thanks that's all"),
        rule(1.5, "(Yield (Execute (ConfirmCreateAndReturnAction (^(Event) EmptyStructConstraint))))",
             "[yes|ok|please] create [it|the event]", "yes create that event"),
        rule(0.8, "(Yield (Execute (ConfirmDeleteAndReturnAction (^(Event) EmptyStructConstraint))))",
             "[yes|ok] delete [it|the event]", "yes cancel that event"),
        rule(0.8,
             "(Yield (Execute (ConfirmUpdateAndReturnActionIntension (^(Event) EmptyStructConstraint))))",
             "[yes|ok] [update|change] [it|the event]"),
    ],
    "confirm_with_more": [
        rule(1, "(do (Yield (Execute (^(Dynamic) ConfirmAndReturnAction))) {request})",
             "[yes|ok|sure|great|looks good] and [also |]{request}", "[yes|ok|perfect], {request}"),
    ],
    "request": [
        rule(6, "{create}", "{create}"),
        rule(2, "{find}", "{find}"),
        rule(1, "{weather}", "{weather}"),
        rule(1, "{delete}", "{delete}"),
    ],
    "reject": [
        rule(10, "(CancelScreen)", "no", "no thanks", "nevermind", "never mind", "cancel", "don't",
             "no, cancel[ that| it|]", "forget it", "stop", "nope", "cancel that", "no don't do that",
             "scratch that", "no never mind"),
        rule(3, "(DoNotConfirm)", "no", "nope", "don't do that", "no that's [wrong|not right]", "not that",
             "no, that isn't right", "I don't want that"),
    ],
    "choose": [
        rule(10, f"(Yield (Execute (ChooseCreateEvent 1L {ACTION})))", "the first one", "first",
             "the first[ option| time|]", "1", "number 1", "option 1", "[pick|choose|use] the first[ one|]",
             "the top one"),
        rule(5, f"(Yield (Execute (ChooseCreateEvent 2L {ACTION})))", "the second one", "second", "2",
             "number 2", "option 2", "[pick|choose] the second[ one|]", "the middle one"),
        rule(3, f"(Yield (Execute (ChooseCreateEvent 3L {ACTION})))", "the third one", "third", "3",
             "number 3", "option 3"),
        rule(1.5, f"(Yield (Execute (ChooseCreateEvent (BottomResult) {ACTION})))",
             "the last one", "the bottom one", "last one"),
        rule(1, f"(Yield (Execute (ChooseCreateEvent (Earliest) {ACTION})))",
             "the earliest one", "the earliest", "earliest[ time| option|]"),
        rule(0.6, f"(Yield (Execute (ChooseCreateEvent (Latest) {ACTION})))",
             "the latest one", "the latest time"),
        rule(1.5, "(Yield (Execute (ChooseUpdateEvent 1L (refer (^(UpdateEventResponse) "
             "ActionIntensionConstraint)))))",
             "the first one", "[change|update] the first one"),
        rule(1.2, "(Yield (Execute (ChooseCreateEventFromConstraint (Event.start_? (DateTime.time_? (?= "
             f"{{clock}}))) {ACTION})))",
             "the one at {clock}", "the {clock} one", "[let's do|how about] {clock}"),
        rule(0.8, "(Yield (ChooseCreateEventFromConstraintWrapper (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint))))",
             "the one {on_date}"),
        rule(1.2, "(Yield (ChoosePersonFromConstraintWrapper {like}))",
             "[I meant|the one named] {like}", "{like} is who I meant"),
        rule(0.8, "(Yield (ChooseUpdateEventWrapper {small}))", "[change|update] number {small}"),
        rule(0.6, "(Yield (ChooseCreateEventWrapper (TopResult)))", "the top result", "top one please"),
    ],
    "revise": [
        rule(8, _revised("(Event.start_? (DateTime.time_? (?= {clock})))"),
             "[actually |no, |]make it {clock}[ instead|]", "change [it|the time] to {clock}",
             "[can you |]make it [at |]{clock}[ instead|]?", "no, at {clock}", "[sorry|wait|oops], {clock}",
             "at {clock}"),
        rule(7, _revised("(Event.start_? (DateTime.date_? (?= {date})))"),
             "[actually|no], {date}", "[can you |]make it {date}[ instead|]?", "I meant {date}", "{date}"),
        rule(7, _revised("(Event.start_? (?= {when}))"), "[actually|no], {when}",
             "make it {when}[ instead|]", "{when}", "it is {when}", "[sorry, |]it should be {when}"),
        rule(7, _revised("(Event.duration_? (?= {hours}))"), "make it {hours}[ long|]",
             "[it should be|it will be|it'll last] {hours}[ long|]", "[it will last|for] {hours}",
             "change the [duration|length] to {hours}"),
        rule(5, _revised(SUBJECT), "call it {subject}", "[name|title] it {subject}",
             "change the [title|name|subject] to {subject}", "[it is|it's] {subject}",
             "make the [title|subject] {subject}"),
        rule(5, _revised(LOCATION), "[it's|it is|it will be] [at|in] {location}",
             "[set the location to|change the location to|make the location] {location}",
             "add [the |]location {location}", "at {location}"),
        rule(5, _revised("{attendees}"), "[add|invite] {attendees}[ too| as well|]",
             "[also |]invite {attendees}", "and [add|invite] {attendees}", "with {attendees}"),
        rule(2.5, _revised("(& (Event.start_? (?= {when})) (Event.duration_? (?= {hours})))"),
             "make it {when} for {hours}", "{when} for {hours}"),
        rule(2, _revised("(Event.start_? (DateTime.date_? {range}))"), "[sometime|make it] {range}",
             "{range} instead"),
        rule(1.5,
             _revised(f"(EventOnDateWithTimeRange (EventOnDate {{on_date}} {ANY_EVENT}) {{part_of_day}})"),
             "make it {on_date} [in the |]{part_of_day}"),
        rule(1.2, _revised("(Event.end_? (DateTime.time_? (?= {clock})))"),
             "[it ends|have it end|make it end] at {clock}", "until {clock}"),
        rule(1, _revised("(Event.showAs_? (?= {status}))"), "[show|mark] me as {status}",
             "set status to {status}"),
        rule(0.8, _revised("(Event.isAllDay_? (?= true))"), "make it [an |]all day[ event|]", "all day"),
        rule(0.8, _revised("(Event.location_? (roomRequest))"), "[add|book] a [conference |]room",
             "I need a room"),
        rule(2, f"(Yield (Execute (NewClobber {ACTION} (^(Recipient) ConstraintTypeIntension) (intension "
             f"{{like}}))))",
             "I meant {like}", "no, [with |]{like}", "[sorry|actually], {like}", "not [him|her], {like}"),
        rule(1, "(Yield (NewClobberWrapper (^(Recipient) ConstraintTypeIntension) {like}))",
             "[change|switch] [him|her] to {like}", "make that {like}"),
        rule(0.8, "(Yield (ClobberWrapper (^(Event) ConstraintTypeIntension) (Event.subject_? (?~= "
             "{subject}))))",
             "I meant {subject}", "no, the {subject}"),
        rule(0.8, "(Yield (CreateAddPerson (PersonName.apply {name})))",
             "{name} is new, add [him|her]", "[create|add] a contact for {name}"),
        rule(0.6, "(Yield (FindAddPerson (PersonName.apply {name})))", "[find and |]add {name}"),
        rule(0.8, "(Yield (Execute (refer (andConstraint (^(Event) roleConstraint (Path.apply "
             "\"output\")) (extensionConstraint (Event.subject_? (?~= {subject})))))))",
             "the {subject} one", "the one called {subject}"),
    ],
    "thanks": [
        rule(60, "(PleasantryAnythingElseCombined)", "thanks", "thank you", "Thanks!", "no thanks",
             "that's all", "that's it", "no that's it", "no that's all", "thank you so much",
             "nope that's [it|all]", "that will be all", "thanks that's all", "no thank you",
             "nothing else", "no that's [all|it] thanks", "great thanks", "perfect thank you", "ok thanks",
             "[that's all|that is all] for now", "no, that is all", "I'm [good|all set]", "nope",
             "[cool|great|awesome], thanks", "thanks a lot", "no I'm good", "bye",
             "thanks for [your help|helping|that]", "ok thank you", "that is it"),
        rule(6, "(GenericPleasantry)", "hi", "hello", "hey", "good morning", "how are you?",
             "you're welcome", "hi there", "what's up?", "nice to meet you", "are you a robot?",
             "what's your name?", "you are [great|awesome|the best]", "good job", "I love you"),
        rule(2.5, "(PleasantryCalendar)", "[I love|that's a nice] calendar",
             "what can you do with my calendar?", "my calendar is so full", "I'm so busy",
             "can you help me with my calendar?"),
        rule(1.5, "(WeatherPleasantry)", "what a nice day", "it's so [hot|cold]", "I love the rain",
             "I hate snow", "nice weather", "it's beautiful out"),
        rule(1.5, "(UserPauseResponse)", "hold on", "wait", "one second", "give me a minute", "hmm",
             "let me think", "hang on", "just a second"),
        rule(1.2, "(RepeatAgent)", "what did you say?", "repeat that[ please|]",
             "[can you |]say that again[?|]", "come again?", "say it again"),
        rule(0.8, "(AgentStillHere)", "are you [there|still there]?", "hello?", "anyone there?"),
    ],
    "fence": _fence_rules(),
}  # fmt: skip

"""Rules of people: mentions, attendees, managers, reports, teams, contact details, availability."""

from __future__ import annotations

from doppel.grammar import lexicon
from doppel.grammar.synchronous import RuleSet, conjunction, rule

ME = "(toRecipient (CurrentUser))"
THAT_PERSON = "(Execute (refer (extensionConstraint (^(Recipient) EmptyStructConstraint))))"


def _has(person: str) -> str:
    return f"(AttendeeListHasRecipient {person})"


def _attending(*people: str) -> str:
    return f"(Event.attendees_? {conjunction(*(_has(person) for person in people))})"


RULES: RuleSet = {
    "name": lexicon.person,
    "like": [
        rule(1, "(RecipientWithNameLike (^(Recipient) EmptyStructConstraint) (PersonName.apply {name}))",
             "{name}"),
    ],
    "person": [rule(1, "(Execute (refer (extensionConstraint {like})))", "{like}")],
    "him": [rule(1, THAT_PERSON, "him", "her", "them")],
    "his": [rule(1, THAT_PERSON, "his", "her", "their")],
    "he": [rule(1, THAT_PERSON, "he", "she", "they")],
    # someone who may attend
    "guest": [
        rule(30, "{person}", "{person}"),
        rule(3, f"(FindManager {ME})", "my boss", "my manager", "my supervisor"),
        rule(2, "(FindManager {person})", "{person}'s boss", "{person}'s manager", "{person}'s supervisor"),
        rule(2, "{him}", "{him}"),
        rule(0.5, "(FindManager {his})", "{his} boss", "{his} manager"),
    ],
    "attendees": [
        rule(30, f"(Event.attendees_? {_has('{guest}')})", "{guest}"),
        rule(11, _attending("{guest}", "{person.2}"), "{guest} and {person.2}", "{guest} & {person.2}"),
        rule(2.5, _attending("{person}", "{person.2}", "{person.3}"), "{person}, {person.2} and {person.3}",
             "{person}, {person.2}, and {person.3}", "{person} {person.2} and {person.3}"),
        rule(1.2, _attending("{person}", "(FindManager {person})"),
             "{person} and [his|her|their] [boss|manager]"),
        rule(2.2, f"(Event.attendees_? (AttendeeListHasPeople (FindTeamOf {ME})))",
             "my team", "the team", "my whole team", "my coworkers"),
        rule(1.5, f"(Event.attendees_? (AttendeeListHasPeople (FindReports {ME})))",
             "my reports", "my direct reports", "my employees"),
        rule(1, "(Event.attendees_? (AttendeeListHasPeople (FindReports {person})))",
             "{person}'s reports", "{person}'s direct reports"),
        rule(0.8, "(Event.attendees_? (AttendeeListHasPeople (FindTeamOf {person})))",
             "{person}'s team", "everyone on {person}'s team"),
        rule(0.5, f"(Event.attendees_? (& (AttendeeListHasPeople (FindTeamOf {ME})) {_has('{person}')}))",
             "my team and {person}"),
        rule(0.3, f"(Event.attendees_? (& {_has('{person}')} (AttendeeListExcludesRecipient {{like.2}})))",
             "{person} but not {like.2}"),
    ],
    # those whose calendars are asked about (subjects of a sentence, so no "him")
    "invitees": [
        rule(12, f"(Event.attendees_? {_has('{person}')})", "{person}"),
        rule(4, _attending("{person}", "{person.2}"), "{person} and {person.2}"),
        rule(1, f"(Event.attendees_? {_has(f'(FindManager {ME})')})", "my boss", "my manager"),
        rule(1, f"(Event.attendees_? (AttendeeListHasPeople (FindTeamOf {ME})))",
             "my team", "everyone on my team"),
    ],
    # a filter on attendees of existing events
    "attended": [
        rule(12, "(Event.attendees_? (AttendeeListHasRecipientConstraint {like}))",
             "{like}"),
        rule(2, "(Event.attendees_? (& (AttendeeListHasRecipientConstraint {like}) "
             "(AttendeeListHasRecipientConstraint {like.2})))",
             "{like} and {like.2}"),
        rule(1.5, f"(Event.attendees_? {_has('{guest}')})", "{guest}"),
        rule(0.7, f"(Event.attendees_? (AttendeeListHasPeopleAnyOf (FindTeamOf {ME})))",
             "anyone on my team", "someone from my team"),
        rule(0.5, f"(Event.attendees_? (AttendeeListHasPeopleAnyOf (FindReports {ME})))",
             "any of my reports", "one of my reports"),
    ],
    "asks_who": [
        rule(9, "(Yield (PersonFromRecipient {person}))", "who is {person}?", "who's {person}?",
             "tell me about {person}", "look up {person}", "show me {person}'s profile", "find {person}",
             "do you know {person}?", "pull up {person}"),
        rule(9, "(Yield (FindManager {person}))", "who is {person}'s [boss|manager|supervisor]?",
             "who does {person} report to?", "who manages {person}?",
             "[tell|show] me {person}'s [manager|boss]", "who's the manager of {person}?",
             "who is the [boss|supervisor] of {person}?"),
        rule(4, f"(Yield (FindManager {ME}))", "who is my [boss|manager|supervisor]?",
             "who do I report to?", "who's my [manager|boss]?"),
        rule(4, "(Yield (FindManager {his}))", "who is {his} [boss|manager]?", "who's {his} manager?",
             "and {his} [boss|manager]?"),
        rule(2, "(Yield (FindManager (FindManager {person})))",
             "who is {person}'s manager's [manager|boss]?", "who is the boss of {person}'s boss?"),
        rule(6, "(Yield (FindReports {person}))", "who reports to {person}?",
             "who are {person}'s [direct |]reports?", "[list|show me] {person}'s [direct |]reports",
             "who works [for|under] {person}?"),
        rule(3, f"(Yield (FindReports {ME}))", "who reports to me?", "who are my [direct |]reports?",
             "who works for me?", "list my [employees|reports]"),
        rule(4, "(Yield (FindTeamOf {person}))", "who is on {person}'s team?",
             "who are {person}'s [teammates|coworkers]?", "show me {person}'s team"),
        rule(2, f"(Yield (FindTeamOf {ME}))", "who is on my team?", "show me my team",
             "who are my [teammates|coworkers|colleagues]?"),
        rule(3, "(Yield (size (FindReports {person})))",
             "how many [people report to|reports does|people work for] {person}[| have]?",
             "how many direct reports does {person} have?"),
        rule(2, f"(Yield (size (FindTeamOf {ME})))", "how many people are on my team?",
             "how big is my team?"),
        rule(2, f"(Yield (PersonOnTeam (PersonFromRecipient {{person}}) (FindTeamOf {ME})))",
             "is {person} on my team?", "does {person} work on my team?"),
        rule(1.2, "(Yield (PersonOnTeam (PersonFromRecipient {person}) (FindTeamOf {person.2})))",
             "is {person} on {person.2}'s team?"),
        rule(2, f"(Yield (== (FindManager {{person}}) {ME}))", "do I manage {person}?",
             "am I {person}'s [boss|manager]?", "does {person} report to me?"),
        rule(1.2, "(Yield (== (FindManager {person}) {person.2}))", "does {person} report to {person.2}?",
             "is {person.2} {person}'s [manager|boss]?"),
        rule(3, "(Yield (Person.emailAddress (PersonFromRecipient {person})))",
             "what is {person}'s email[ address|]?", "what's {person}'s email?",
             "give me {person}'s email address", "how can I email {person}?"),
        rule(3, "(Yield (Person.phoneNumber (PersonFromRecipient {person})))",
             "what is {person}'s [phone |]number?", "what's {person}'s phone number?",
             "I need {person}'s [phone |cell |]number"),
        rule(2.5, "(Yield (Person.officeLocation (PersonFromRecipient {person})))",
             "where is {person}'s office?", "what [room|building] is {person} in?",
             "where does {person} [work|sit]?", "what's {person}'s office location?"),
        rule(1, "(Yield (Person.phoneNumber (PersonFromRecipient {his})))",
             "what is {his} phone number?", "and {his} number?"),
        rule(1, "(Yield (Person.emailAddress (PersonFromRecipient {his})))",
             "what's {his} email?", "what is {his} email address?"),
        rule(0.8, "(Yield (Person.emailAddress (PersonFromRecipient (FindManager {person}))))",
             "what is {person}'s [manager's|boss's] email?"),
        rule(0.6, "(do (Yield (FindManager {person})) (Yield (FindReports {person})))",
             "who is {person}'s manager and who are [his|her|their] reports?"),
    ],
    "asks_free": [
        rule(5,
             "(Yield (IsFree (RecipientAvailability (& (Event.start_? (?= {moment})) {invitees}) false)))",
             "[is|are] {invitees} [free|available] {moment}?",
             "can {invitees} [meet|make it|join] {moment}?", "will {invitees} be free {moment}?"),
        rule(3, "(Yield (IsFree (RecipientAvailability (& (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint)) {invitees}) false)))",
             "[is|are] {invitees} [free|available] {on_date}?", "can {invitees} meet {on_date}?"),
        rule(2, "(Yield (IsBusy (RecipientAvailability (& (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint)) {invitees}) false)))",
             "[is|are] {invitees} busy {on_date}?"),
        rule(2, "(Yield (RecipientAvailability (& (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint)) {invitees}) false))",
             "when [is|are] {invitees} [free|available] {on_date}?",
             "check {invitees}'s availability {on_date}",
             "what does {invitees}'s [day|schedule] look like {on_date}?"),
        rule(1.5, "(Yield (RecipientAvailability (& (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint)) {invitees}) true))",
             "when are {invitees} and I [both |]free {on_date}?",
             "find a time for me and {invitees} to meet {on_date}"),
        rule(3, "(Yield (IsFree (RecipientAvailability (Event.start_? (?= {moment})) true)))",
             "am I [free|available] {moment}?", "do I have time {moment}?", "am I doing anything {moment}?"),
        rule(1, "(Yield (IsFree (RecipientAvailability (Event.start_? (?= {when})) true)))",
             "is {when} [free|open] [for me|on my calendar]?", "does {when} work for me?"),
        rule(2, "(Yield (IsFree (RecipientAvailability (EventOnDateWithTimeRange (EventOnDate {on_date} "
             "(^(Event) EmptyStructConstraint)) {part_of_day}) true)))",
             "am I free {on_date} in the {part_of_day}?",
             "do I have [any |]free time {on_date} [in|during] the {part_of_day}?"),
        rule(1.5, "(Yield (IsBusy (RecipientAvailability (EventOnDate {on_date} (^(Event) "
             "EmptyStructConstraint)) true)))",
             "am I busy {on_date}?", "is my calendar full {on_date}?"),
    ],
}  # fmt: skip

"""Rules of places: addresses, phone numbers, opening hours, ratings, features; finding places nearby."""

from __future__ import annotations

from doppel.grammar import lexicon
from doppel.grammar.synchronous import Rule, RuleSet, rule

FOUND = "(singleton (PlaceSearchResponse.results (FindPlaceMultiResults (LocationKeyphrase.apply {venue}))))"
THAT_PLACE = "(Execute (refer (^(Place) ActionIntensionConstraint)))"

PROPERTIES = {
    "formattedAddress": (4, "address", (
        "where is {it}?", "what is the address of {it}?", "what's the address [for|of] {it}?",
        "[give|get] me the address of {it}",
    )),
    "phoneNumber": (4, "phone number", (
        "what is the [phone |]number [for|of] {it}?", "what's the phone number for {it}?",
        "how [do|can] I call {it}?", "I need the number for {it}",
    )),
    "hours": (4, "hours", (
        "what are the hours [for|of] {it}?", "when does {it} [open|close]?",
        "what time does {it} [open|close]?", "is {it} open [now|today|right now]?",
        "how late is {it} open?",
    )),
    "rating": (2, "rating", (
        "what is the rating [of|for] {it}?", "how many stars does {it} have?", "is {it} any good?",
        "how are the reviews for {it}?",
    )),
    "price": (2, "price", (
        "how expensive is {it}?", "is {it} [expensive|cheap|pricey]?",
        "what's the price range [of|at] {it}?",
    )),
    "url": (1.2, "website", (
        "what is the website [for|of] {it}?", "does {it} have a website?", "show me {it}'s website",
    )),
}  # fmt: skip

FEATURES = {
    "Takeout": (5, (
        "does {it} [have|do|offer] takeout?", "can I [get|order] takeout from {it}?",
        "is takeout available at {it}?", "does {it} have take out?",
    )),
    "OutdoorDining": (3, (
        "does {it} have outdoor [seating|dining|tables]?", "can I [sit|eat] outside at {it}?",
        "is there a patio at {it}?",
    )),
    "GoodForGroups": (2.5, (
        "is {it} good for [groups|a large group|large parties]?",
        "can {it} [seat|handle] a [big|large] group?",
    )),
    "Casual": (1.5, (
        "is {it} casual?", "is {it} a casual [place|restaurant]?", "is the dress code at {it} casual?",
    )),
    "HappyHour": (1.5, ("does {it} have [a |]happy hour?", "is there happy hour at {it}?")),
    "FamilyFriendly": (2.5, (
        "is {it} [kid|family] friendly?", "can I [take|bring] [my |]kids to {it}?",
        "is {it} good for kids?",
    )),
    "FullBar": (1.5, ("does {it} have a full bar?", "does {it} serve [alcohol|drinks|cocktails]?")),
    "Reservations": (2, ("does {it} take reservations?", "do I need a reservation [at|for] {it}?")),
    "WaiterService": (0.6, ("does {it} have [waiter|table] service?",)),
    "Delivery": (1.5, ("does {it} [deliver|do delivery]?", "is delivery available from {it}?")),
}  # fmt: skip


def _properties() -> list[Rule]:
    rules = []
    for name, (weight, noun, questions) in PROPERTIES.items():
        named = [q.replace("{it}", "{venue}") for q in questions]
        rules.append(rule(weight, f"(Yield (Place.{name} {FOUND}))", *named))
        asked = [question.replace("{it}'s", "its") for question in questions]
        that = [f"what is [its|the] {noun}?", f"what's [its|the] {noun}?", *asked]
        that = [q.replace("{it}", "[it|that place]") for q in that]
        rules.append(rule(0.25 * weight, f"(Yield (Place.{name} {THAT_PLACE}))", *that))
    return rules


def _features() -> list[Rule]:
    rules = []
    for name, (weight, questions) in FEATURES.items():
        named = [q.replace("{it}", "{venue}") for q in questions]
        rules.append(rule(weight, f"(Yield (PlaceHasFeature (PlaceFeature.{name}) {FOUND}))", *named))
        that = [q.replace("{it}", "[it|that place|the restaurant]") for q in questions]
        tree = f"(Yield (PlaceHasFeature (PlaceFeature.{name}) {THAT_PLACE}))"
        rules.append(rule(0.2 * weight, tree, *that))
    return rules


RULES: RuleSet = {
    "venue": lexicon.venue,
    "place_kind": lexicon.place_kind,
    "place_properties": _properties(),
    "place_features": _features(),
    "places": [
        rule(26, "{place_properties}", "{place_properties}"),
        rule(22, "{place_features}", "{place_features}"),
        rule(6, "(Yield (FindPlaceMultiResults (LocationKeyphrase.apply {venue})))",
             "[find|look up|search for] {venue}", "[tell me|what can you tell me] about {venue}"),
        rule(8, "(Yield (FindPlaceAtHere (LocationKeyphrase.apply {place_kind}) (AtPlace (Here))))",
             "find [a|the nearest|the closest] {place_kind}[| near me| nearby]",
             "where is the [nearest|closest] {place_kind}?",
             "is there a {place_kind} [near me|nearby|close by|around here]?",
             "show me [some |]{place_kind}s near me", "I need a {place_kind}"),
        rule(5, "(Yield (FindPlaceAtHere (LocationKeyphrase.apply {place_kind}) (AtPlace (FindPlace "
             "(LocationKeyphrase.apply {city})))))",
             "find [a|the best] {place_kind} in {city}", "is there a [good |]{place_kind} in {city}?",
             "where can I find a {place_kind} in {city}?"),
        rule(3, "(Yield (FindPlaceAtHere (LocationKeyphrase.apply {place_kind}) (AtPlace (FindPlace "
             "(LocationKeyphrase.apply {venue})))))",
             "find a {place_kind} [near|close to] {venue}", "is there a {place_kind} by {venue}?"),
        rule(1, "(Yield (FindPlaceAtHere (LocationKeyphrase.apply {place_kind}) (AtPlace (FindPlace "
             "(Event.location {the_event})))))",
             "find a {place_kind} near {the_event}"),
        rule(1, "(do (Yield (Place.formattedAddress (FindPlace (LocationKeyphrase.apply {venue})))) "
             "(Yield (Place.phoneNumber (FindPlace (LocationKeyphrase.apply {venue})))))",
             "what's the address and phone number of {venue}?",
             "I need the address and the number of {venue}"),
        rule(0.8, "(Yield (PlaceDescribableLocation (FindPlace (LocationKeyphrase.apply {venue}))))",
             "describe where {venue} is", "where exactly is {venue}?"),
        rule(0.8, "(Yield (> (Place.rating (FindPlace (LocationKeyphrase.apply {venue}))) (Place.rating "
             "(FindPlace (LocationKeyphrase.apply {venue.2})))))",
             "is {venue} [better|rated higher] than {venue.2}?"),
    ],
    "places_more": [
        rule(3, "(Yield (Execute (refer (cursorNext (^(Place) ActionIntensionConstraint)))))",
             "[show me |]the next one", "[what|anything] else?", "another one", "do you have another one?"),
        rule(1, "(Yield (Execute (refer (cursorPrevious (^(Place) ActionIntensionConstraint)))))",
             "go back to the previous one", "the one before"),
        rule(2, '(Yield (Execute (NewClobber (refer (^(Dynamic) ActionIntensionConstraint)) '
             '(^(LocationKeyphrase) ConstraintTypeIntension) (intension (LocationKeyphrase.apply '
             '{venue})))))',
             "what about {venue}?", "how about {venue}?", "and {venue}?"),
    ],
}  # fmt: skip

"""Rules of the weather: conditions, temperatures, rain and snow, sun, wind; at a place, a date, an event."""

from __future__ import annotations

from doppel.grammar import lexicon
from doppel.grammar.events import THAT_EVENT
from doppel.grammar.synchronous import Rule, RuleSet, rule

CONDITIONS = {
    "WillRain": (10, (
        "will it rain", "is it going to rain", "do I need an umbrella", "will I need an umbrella",
        "is there any rain",
    )),
    "WillSnow": (6, ("will it snow", "is it going to snow", "is there snow", "do we expect snow")),
    "WillSleet": (0.6, ("will it sleet", "is sleet coming")),
    "IsSunny": (4, ("will it be sunny", "is it sunny", "will the sun be out")),
    "IsRainy": (3, ("will it be rainy", "is it rainy", "is it raining")),
    "IsHot": (3, ("will it be hot", "is it hot", "how hot is it")),
    "IsCold": (4, ("will it be cold", "is it cold", "is it chilly")),
    "IsWindy": (3, ("will it be windy", "is it windy", "is it breezy")),
    "IsCloudy": (2.5, ("will it be cloudy", "is it cloudy", "is it overcast")),
    "IsSnowy": (2, ("will it be snowy", "is it snowing", "is it snowy")),
    "IsStormy": (2, (
        "will it storm", "is it going to storm", "are there any thunderstorms", "will it be stormy",
    )),
    "NeedsJacket": (3, (
        "do I need a jacket", "should I bring a jacket", "will I need a coat", "is it jacket weather",
    )),
    "IsHighUV": (1, ("is the UV index high", "do I need sunscreen", "should I wear sunscreen")),
}  # fmt: skip

QUANTITIES = {
    ("Summarize", "temperature"): (8, (
        "what is the temperature", "what's the temperature", "how warm is it",
        "what temperature will it be",
    )),
    ("Max", "temperature"): (4, (
        "what's the high", "what is the high temperature", "what's the hottest it will get",
        "how hot will it get",
    )),
    ("Min", "temperature"): (4, (
        "what's the low", "what is the low temperature", "how cold will it get",
        "what's the coldest it will be",
    )),
    ("Average", "temperature"): (1.2, ("what's the average temperature", "what is the average temperature")),
    ("Summarize", "windSpeed"): (2.5, ("how windy is it", "what's the wind speed", "how fast is the wind")),
    ("Max", "windSpeed"): (0.8, ("what's the highest wind speed", "how strong will the wind get")),
    ("Summarize", "windBearing"): (0.5, (
        "what direction is the wind blowing", "which way is the wind blowing",
    )),
    ("Summarize", "humidity"): (2, ("what's the humidity", "how humid is it", "how humid will it be")),
    ("Summarize", "precipProbability"): (2.5, (
        "what's the chance of rain", "what are the odds of precipitation",
        "what is the chance of precipitation",
    )),
    ("Max", "rainPrecipProbability"): (1.2, ("what's the highest chance of rain", "how likely is rain")),
    ("Summarize", "snowPrecipProbability"): (0.8, ("what's the chance of snow", "how likely is snow")),
    ("Sum", "snowPrecipAccumulation"): (1.2, (
        "how much snow will we get", "how many inches of snow will there be",
    )),
    ("Summarize", "rainPrecipIntensity"): (0.4, ("how hard will it rain", "how heavy is the rain")),
    ("Summarize", "snowPrecipIntensity"): (0.3, ("how hard will it snow", "how heavy is the snow")),
    ("Summarize", "sunriseTime"): (2, (
        "when is sunrise", "what time is sunrise", "when does the sun come up",
        "what time does the sun rise",
    )),
    ("Summarize", "sunsetTime"): (2.5, (
        "when is sunset", "what time is sunset", "when does the sun set", "when will it get dark",
    )),
    ("Summarize", "cloudCover"): (0.6, ("how cloudy is it", "what's the cloud cover")),
    ("Summarize", "uvIndex"): (0.9, ("what's the UV index", "what is the UV index")),
    ("Summarize", "visibility"): (0.5, ("what's the visibility", "how is the visibility")),
    ("Summarize", "dewPoint"): (0.5, ("what's the dew point", "what is the dew point")),
    ("Summarize", "pressure"): (0.5, ("what's the air pressure", "what is the barometric pressure")),
    ("Summarize", "apparentTemperature"): (0.8, ("what does it feel like outside", "what's the real feel")),
}  # fmt: skip


TABLE = "(WeatherQueryApi {weather_where} {weather_when})"


def _aggregate(kind: str, quantity: str) -> str:
    return f"(Yield (WeatherAggregate (WeatherQuantifier.{kind}) ({quantity}) {TABLE}))"


def _here(question: str) -> str:
    """A question about some place and day; the three are said in either order."""
    return question + "[{weather_where}{weather_when}|{weather_when}{weather_where}]?"


def _conditions() -> list[Rule]:
    return [
        rule(weight, f"(Yield ({head} {TABLE}))", *(_here(question) for question in questions))
        for head, (weight, questions) in CONDITIONS.items()
    ]  # fmt: skip


def _quantities() -> list[Rule]:
    return [
        rule(weight, _aggregate(kind, quantity), *(_here(question) for question in questions))
        for (kind, quantity), (weight, questions) in QUANTITIES.items()
    ]  # fmt: skip


RULES: RuleSet = {
    "city": lexicon.city,
    # both begin with a space, or are empty
    "weather_where": [
        rule(30, "(AtPlace (FindPlace (LocationKeyphrase.apply {city})))", " in {city}"),
        rule(13, "(AtPlace (Here))", "", "", " here", " outside", " around here"),
        rule(1, f"(AtPlace (FindPlace (Event.location {THAT_EVENT})))", " there", " at that location"),
        rule(0.8, "(AtPlace (FindPlace (Event.location {the_event})))", " at the location of {the_event}"),
    ],
    "weather_when": [
        rule(14, "(DateTime.date_? (?= {on_date}))", " {on_date}"),
        rule(8, "(DateTime.date_? (?= (Today)))", "", " today", ""),
        rule(8, "(DateTime.date_? {range})", " {range}"),
        rule(4, "(?= (Now))", " right now", " now", " at the moment"),
        rule(4, "(DateTimeConstraint {part_of_day} {on_date})", " {on_date} {part_of_day}",
             " {on_date} in the {part_of_day}"),
        rule(3, "(DateTimeConstraint (Night) (Today))", " tonight"),
        rule(3, "(?= {moment})", " {moment}"),
        rule(0.6, "(OnDateAfterTime {on_date} {clock})", " {on_date} after {clock}"),
        rule(0.4, "(OnDateBeforeTime {on_date} {clock})", " {on_date} before {clock}"),
        rule(0.4, "(NextPeriodDuration (PeriodDuration.apply (toDays 0L) {hours}))",
             " in the next {hours}"),
        rule(0.3, "(LastDuration (PeriodDuration.apply (toDays 0L) {hours}))",
             " in the last {hours}"),
        rule(0.3, "(Later)", " later"),
    ],
    "weather_conditions": _conditions(),
    "weather_quantities": _quantities(),
    "weather": [
        rule(34, f"(Yield {TABLE})", _here("[what's|what is|how's|how is] the weather"),
             _here("what will the weather be[ like|]"), _here("[tell|show] me the [weather|forecast]"),
             _here("what's the [weather |]forecast"), _here("[weather|weather forecast|forecast]"),
             _here("what is the weather like"), _here("how's it looking")),
        rule(28, "{weather_conditions}", "{weather_conditions}"),
        rule(24, "{weather_quantities}", "{weather_quantities}"),
        rule(8, "(Yield (WeatherForEvent {one}))", "what will the weather be [like |]for [my|the] {one}?",
             "what's the weather [like |]for [my|the] {one}?", "[weather|forecast] for [my|the] {one}"),
        rule(2, "(Yield (WillRain (WeatherForEvent {one})))", "will it rain [during|on] [my|the] {one}?",
             "do I need an umbrella for [my|the] {one}?"),
        rule(1.2, "(Yield (NeedsJacket (WeatherForEvent {one})))", "do I need a jacket for [my|the] {one}?",
             "should I bring a coat to [my|the] {one}?"),
        rule(0.6, "(Yield (IsCold (WeatherForEvent {one})))", "will it be cold [for|during] [my|the] {one}?"),
        rule(1.5, f"(Yield (WhenProperty (precipProbability) (WeatherQuantifier.Max) {TABLE}))",
             _here("when will it rain"), _here("when is it most likely to rain")),
        rule(1, f"(Yield (WhenProperty (temperature) (WeatherQuantifier.Max) {TABLE}))",
             _here("when will it be the hottest"), _here("what's the warmest time")),
        rule(0.6, f"(Yield (WhenProperty (windSpeed) (WeatherQuantifier.Max) {TABLE}))",
             _here("when will it be windiest")),
        rule(1, f"(Yield (> (WeatherAggregate (WeatherQuantifier.Max) (temperature) {TABLE}) "
             f"(toFahrenheit {{degrees}})))",
             _here("will it [get|be] [above|over] {degrees}[ degrees|]"),
             _here("is it going to be warmer than {degrees}[ degrees|]")),
        rule(0.9, f"(Yield (< (WeatherAggregate (WeatherQuantifier.Min) (temperature) {TABLE}) "
             f"(NumberInDefaultTempUnits {{degrees}})))",
             _here("will it [drop|get|be] below {degrees}[ degrees|]"),
             _here("is it going to be colder than {degrees}[ degrees|]")),
        rule(0.7,
             f"(Yield (inCelsius (WeatherAggregate (WeatherQuantifier.Summarize) (temperature) {TABLE})))",
             _here("what's the temperature in celsius"), _here("how many degrees celsius is it")),
        rule(0.4, "(Yield (inFahrenheit (WeatherAggregate (WeatherQuantifier.Summarize) (temperature) "
             f"{TABLE})))",
             _here("what's the temperature in fahrenheit")),
        rule(0.4, "(Yield (inUsMilesPerHour (WeatherAggregate (WeatherQuantifier.Summarize) (windSpeed) "
             f"{TABLE})))",
             _here("how many miles per hour is the wind")),
        rule(0.4, "(Yield (inInches (WeatherAggregate (WeatherQuantifier.Sum) (snowPrecipAccumulation) "
             f"{TABLE})))",
             _here("how many inches of snow are expected")),
        rule(0.6, f"(do (Yield (WillRain {TABLE})) (Yield (WeatherAggregate (WeatherQuantifier.Summarize) "
             f"(temperature) {TABLE})))",
             "will it rain{weather_where}{weather_when} and what's the temperature?"),
    ],
    "degrees": [rule(1, f"{d}L", str(d)) for d in (0, 20, 32, *range(40, 95, 5), 100)],
    "weather_more": [
        rule(5, '(Yield (Execute (NewClobber (refer (^(Dynamic) ActionIntensionConstraint)) '
             '(^((Constraint Point)) roleConstraint (Path.apply "place")) (intension (AtPlace (FindPlace '
             '(LocationKeyphrase.apply {city})))))))',
             "what about [in |]{city}?", "how about [in |]{city}?", "and [in |]{city}?",
             "I [meant|mean] [in |]{city}", "[sorry|no], {city}"),
        rule(4, '(Yield (Execute (NewClobber (refer (^(Dynamic) ActionIntensionConstraint)) '
             '(^((Constraint DateTime)) roleConstraint (Path.apply "time")) (intension (DateTime.date_? '
             '(?= {on_date}))))))',
             "what about {on_date}?", "how about {on_date}?", "and {on_date}?"),
        rule(2, '(Yield (Execute (NewClobber (refer (^(Dynamic) ActionIntensionConstraint)) '
             '(^((Constraint DateTime)) roleConstraint (Path.apply "time")) (intension (DateTime.date_? '
             '{range})))))',
             "what about {range}?", "and {range}?"),
        rule(1.5, "(Yield (WillRain (Execute (refer (extensionConstraint (^(WeatherTable) "
             "AlwaysTrueConstraint))))))",
             "will it rain?", "any rain?", "do I need an umbrella then?"),
        rule(1, "(Yield (NeedsJacket (Execute (refer (extensionConstraint (^(WeatherTable) "
             "AlwaysTrueConstraint))))))",
             "do I need a jacket?", "should I wear a coat?"),
        rule(0.8, "(Yield (WeatherAggregate (WeatherQuantifier.Max) (temperature) (Execute (refer "
             "(extensionConstraint (^(WeatherTable) AlwaysTrueConstraint))))))",
             "what's the high?", "and the high?"),
    ],
}  # fmt: skip

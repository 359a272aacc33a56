"""What the commands of ``cli.py`` do; here, what the steps of a run call, beside trainings and samplings."""

#: Command of a step → ``"module:function"``, which is imported when it is asked for.
STEPS = {
    "partition": "commands.data.partition:partition",
    "public-trees": "commands.data.public_trees:public_trees",
    "histogram": "commands.privacy.histogram:histogram",
    "attributes": "commands.privacy.attributes:attributes",
    "resample": "commands.privacy.resample:resample",
    "rows": "commands.privacy.rows:rows",
    "words": "commands.privacy.words:words",
    "keep-saying": "commands.privacy.words:keep_saying",
    "evolve": "commands.privacy.evolve:evolve",
    "keep-best": "commands.quality.keep_best:keep_best",
    "parser-metrics": "commands.quality.parser_metrics:parser_metrics",
    "evaluate": "commands.quality.evaluate:evaluate",
    "choose": "commands.annotate.choose:choose",
    "work": "commands.privacy.embedded_parts:work",
}

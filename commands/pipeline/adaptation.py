"""The stages of an end-to-end adaptation: a parser learns, from private utterances that nobody reads, a function.

Formal guarantees:
    One unit is one line of the private part. Its tree is a function of its utterance and of a parser, nothing else, and
    that parser has seen the public part alone. So a neighbour of the private part changes one line of the annotated
    file, and what trains on that is as private as what would train on private trees. The high-resource parser stands in
    for people who label the (released) samples. In this experiment it has seen the trees of the private part, for want
    of people: what it adds is knowledge of the annotators, and no ε covers it.
"""

from __future__ import annotations

from commands.pipeline.experiment import Adaptation, Settings
from commands.pipeline.stages import PRIVATE_PARTS, Stages
from commands.pipeline.steps import File, Step
from commands.pipeline.systems import System

_SPLIT = ("train", "missing", "test", "test_share", "public_share", "by")


class AdaptationStages(Stages):
    """Mireshghallah et al., 2023, section 5.4 (Tables 3, 5 and 8).

    ==============================  ===============================================================================
    ``data/``                       public part (lacks the function), private part (utterances alone), test
    ``parser_none/``                the parser that the public part alone teaches
    ``data/private_annotated``      the private part with the trees that it gives
    ``one_stage/``, …               private models of that file, and their samples
    ``annotated_SYSTEM.jsonl``      samples with the trees of the high-resource parser, which stands in for people
    ``parser_SYSTEM/``              the parser that the public part and these samples teach
    ``parser_metrics/SYSTEM.json``  its accuracy on the test, with and without the function
    ==============================  ===============================================================================
    """

    def all(self) -> list[Step]:
        """All stages."""
        names, used = self.experiment.systems, [system for system in self.experiment.used if system.samplings]
        self.partition()
        self.fit_parser("parser_none", "parser_low", [self.data("public")], ("partition",))
        self.score("none", "parser_none")
        self.annotate_private(
            self.checkpoint("parser_none"), self.data("private"), ("partition", "parser_none"), "dialogue"
        )
        if self.parser is None:
            self.fit_parser("parser_full", "parser_full", [self.data("full")], ("partition",))
            self.parser, self.evaluate_after = self.checkpoint("parser_full"), ("parser_full",)
        if "full" in names:
            self.score("full", *self.evaluate_after)
        for system in used:
            self.synthesise(system)
        for system in used:
            self.retrain(system.name, system, system.synthetic)
        self.report()
        return self.listed

    @property
    def given(self) -> Adaptation:
        """The experiment's own part."""
        assert self.experiment.adaptation is not None
        return self.experiment.adaptation

    def data(self, part: str) -> str:
        """A file of the split."""
        return str(self.run / "data" / f"{part}.jsonl")

    def partition(self) -> None:
        """Split the annotated turns."""
        given: Settings = {name: getattr(self.given, name) for name in _SPLIT}
        seed = self.experiment.seed or 1
        own: Settings = {"seed": seed, "out": self.run / "data", "columns": self.columns}
        private, public = PRIVATE_PARTS, ("public", "test")
        writes = [File(f"data/{part}.jsonl", "private") for part in private]
        writes += [File(f"data/{part}.jsonl", "data") for part in public]
        writes.append(File("data/partition.json", "data"))
        reads = [self.given.train, self.given.test]
        self.tool("partition", "tool", (), "partition", **given, **own, writes=writes, reads=reads, protected=reads[:1])
        self.columns = None  # what the split writes has the usual ones

    def score(self, name: str, *needs: str) -> None:
        """Accuracy of a parser on the test."""
        predicted = f"parsed_test/{name}.jsonl"
        parser = str(self.parser) if name == "full" else self.checkpoint(f"parser_{name}")
        self.annotate(f"test_{name}", self.data("test"), parser, predicted, ("partition", *needs))
        out = self.run / "parser_metrics" / f"{name}.json"
        given: Settings = {"function": self.given.missing, "gold": self.data("test")}
        needed = (f"annotate_test_{name}",)
        self.tool(
            f"score_{name}",
            "tool",
            needed,
            "parser-metrics",
            predicted=self.run / predicted,
            **given,
            out=out,
            writes=[File(f"parser_metrics/{name}.json", "metrics")],
            reads=[predicted, self.data("test")],
        )

    def retrain(self, name: str, system: System, synthetic: str) -> None:
        """Annotate the samples as experts would, all or those that are worth most, and teach them to a new parser."""
        annotated, samples, given = f"annotated_{name}.jsonl", self.run / synthetic, self.given
        after = self.writer(system)
        if given.num_annotated is not None and system.has_trees:
            chosen = self.run / f"chosen_{name}.jsonl"
            options: Settings = {"num": given.num_annotated, "method": given.annotate_by, "out": chosen}
            self.tool(
                f"diverse_{name}",
                "tool",
                (after,),
                "choose",
                str(samples),
                **options,
                seed=self.experiment.seed,
                writes=[self.file(chosen.name, "release", system)],
                reads=[samples],
            )
            samples, after = chosen, f"diverse_{name}"
        needs = (after, *self.evaluate_after)
        self.annotate(name, str(samples), str(self.parser), annotated, needs, system=system)
        files = [self.data("public"), str(self.run / annotated)]
        self.fit_parser(f"parser_{name}", "parser_augmented", files, ("partition", f"annotate_{name}"))
        self.score(name, f"parser_{name}")

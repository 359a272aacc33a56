"""The steps of an experiment: a recipe a system, a function a kind of step."""

"""Who runs the steps: here, as jobs, or as the tasks of an array."""

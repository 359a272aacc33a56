"""Settings: what each one is, and how they are read from YAML and merged."""

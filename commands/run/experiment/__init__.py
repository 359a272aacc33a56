"""What an experiment says: its fields, how its file is read, and what contradicts itself."""

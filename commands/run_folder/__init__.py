"""What a run folder is: its steps, systems, files and record; it imports no other room of commands."""

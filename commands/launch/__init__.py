"""Starting trainings and experiments, and what their run folders say."""

"""What runs spent and reached: one report a run, tables and plots of many."""

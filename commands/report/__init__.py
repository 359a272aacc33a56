"""A run, or several, as a page that anybody can open: one HTML file that asks no network for anything."""

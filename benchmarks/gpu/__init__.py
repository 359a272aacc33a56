"""What is measured where there is a GPU for a quarter of an hour; see README.md."""

"""What only the tables of papers need. No module of the product imports anything of it."""

"""What a text says: its words and their forms, themes and topics, and words that nobody expected."""

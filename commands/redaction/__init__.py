"""Commands of redaction, which hides words and gives no guarantee."""

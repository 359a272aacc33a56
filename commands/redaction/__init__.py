"""Commands that redact text, and measure what redaction hides."""

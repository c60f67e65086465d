"""An OpenAI-compatible server: one thread owns the decoder, and texts join and leave between its steps."""

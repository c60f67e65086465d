"""Text in, text out: decoder, chat, prompts and detokenization."""

"""Text in, text out: the decoder, chat, prompts, tokens to text."""

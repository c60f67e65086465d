"""The policy of whoever asks for none: tokens per second, counted in measured seconds."""

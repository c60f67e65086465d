"""`auto`, the default policy: tokens per second, counted in measured seconds."""

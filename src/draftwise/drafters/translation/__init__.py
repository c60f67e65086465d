"""Between two tokenizers: texts, drafts and vocabularies of one in tokens of the other. No torch."""

"""Text: tokenizer, chat template, detokenizer, stop strings. Knows no HTTP and no tensors."""

"""What `tools/train_embedded.py` is made of: corpus, tokenizer, schedule, loop, export, card."""

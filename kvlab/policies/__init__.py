"""The policies: each decides where the KV of every request lives."""

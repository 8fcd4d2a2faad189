"""Checks of names, words, log fields, settings keys and documents. `make check` runs them; nothing here ships."""

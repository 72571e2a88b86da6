"""The OpenAI-compatible server: what is loaded, one generation thread, and HTTP."""

"""The only code that touches llama.cpp."""

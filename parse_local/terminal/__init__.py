"""What is drawn: the chat screen, the streaming answer, verdicts, statistics."""

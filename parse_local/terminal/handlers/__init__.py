"""What each slash command of the chat does, by subject."""

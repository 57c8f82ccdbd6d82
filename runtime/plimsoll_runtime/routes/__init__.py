"""Routes: the four dialects as pure converters, and the one handler that runs them."""

"""The Plimsoll inference runtime: four API dialects, one budget law, one engine thread."""

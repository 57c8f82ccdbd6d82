"""`plimsoll bulk`: many requests from a file, over one server or several, each answered once."""

"""The form that an answer is held to: what a client asks for, as a rule over the tokens of one sequence."""

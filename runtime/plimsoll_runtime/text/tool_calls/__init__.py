"""How a model's text becomes content and tool calls: one parser per way of writing calls, chosen by name."""

"""Methods whose workers hear from their neighbours on a graph."""

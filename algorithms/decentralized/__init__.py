"""Methods whose workers exchange messages with their neighbours on a graph."""

"""Real processes: local processes on one machine, and their tasks as workers."""

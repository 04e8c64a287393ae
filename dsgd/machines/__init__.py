"""Real processes: local processes on this machine, and what each of them does as a worker."""

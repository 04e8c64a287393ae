"""What every method must hold, looked for in runs."""

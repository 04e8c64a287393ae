"""One script for each result: `python -m experiments.<name>`."""

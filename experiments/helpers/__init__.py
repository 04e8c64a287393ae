"""What the commands share. None of these files is a command."""

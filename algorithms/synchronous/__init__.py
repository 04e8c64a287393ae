"""Methods in which all wait for all, and send what they have as it is."""

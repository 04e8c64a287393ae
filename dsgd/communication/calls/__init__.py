"""The calls of a communicator, by what they send; each is one exchange or a part of one."""

"""The engine around the log: committing appends, knowing the head, following from a cursor."""

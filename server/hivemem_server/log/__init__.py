"""The engine around the log: committing appends, knowing heads, keeping the newest records, following from a cursor."""

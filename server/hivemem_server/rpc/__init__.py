"""The services over gRPC: convert, call, convert; and the domain's errors as statuses."""

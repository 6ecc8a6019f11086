"""Migrations of the schema, in order. One that has been released is never changed."""

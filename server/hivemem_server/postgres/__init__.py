"""PostgreSQL: tables, named SQL, migrations, the embedded database, and the adapters of the domain's ports."""

"""What hivemem is about, without any I/O: values, rules, filters, ranking, resume, and the ports they need."""

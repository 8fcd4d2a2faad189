"""What consumers gave up on, for operators: to look at, to send again, to throw away."""

"""The way in for invocations, and what callers see of them. What happens in between is other processes' part."""

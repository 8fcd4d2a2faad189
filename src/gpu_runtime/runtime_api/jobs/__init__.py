"""The job API: shows the state of an operation to its caller."""

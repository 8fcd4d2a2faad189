"""Writes docs/reference from the code. This is a development tool. The product does not contain or import it."""
